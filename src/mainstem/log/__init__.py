"""The log: topics of records, kept in partitions, read by offset, by acknowledgement and by SQL. No Spark in here."""
