"""The read side of a partition: blocks, sealed files and their checksums, what readers hold, archives, SQL."""
