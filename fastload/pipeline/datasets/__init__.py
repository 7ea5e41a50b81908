"""What datasets hold, and how samples are found in it."""
