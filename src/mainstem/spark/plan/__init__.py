"""Analysis of Catalyst's plans."""
