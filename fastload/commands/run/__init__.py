"""``fastload run``: run a script with FastLoader in place of DataLoader."""
