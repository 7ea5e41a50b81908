"""Pinned shared memory for worker processes to write into."""
