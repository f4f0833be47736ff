"""Tables that change: rows that are put in and taken away again, and the engines over them."""
