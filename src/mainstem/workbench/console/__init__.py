"""The console: a server that shows a home in a browser. It needs no Spark and no running flow."""
