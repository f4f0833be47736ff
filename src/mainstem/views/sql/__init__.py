"""What the views in every SQL database have in common."""
