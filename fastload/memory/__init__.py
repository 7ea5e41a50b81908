"""Shared memory that worker processes write batches into: pinned slots, and memory files."""
