"""What the installed libraries do."""
