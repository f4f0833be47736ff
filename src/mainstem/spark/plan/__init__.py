"""Everything that looks into Catalyst's plans."""
