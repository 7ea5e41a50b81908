"""Worker processes: what they do at their start, and how they make each batch."""
