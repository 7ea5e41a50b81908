"""Pinned shared memory that workers write into."""
