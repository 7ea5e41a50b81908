"""Counts and times of a loader, summed over threads and processes, and what they say."""
