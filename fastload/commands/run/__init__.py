"""``fastload run``: run a script with FastLoader in the place of DataLoader."""
