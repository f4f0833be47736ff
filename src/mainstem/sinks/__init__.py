"""Where rows leave, once."""
