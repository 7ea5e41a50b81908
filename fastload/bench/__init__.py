"""Benchmarks behind ``fastload bench``."""
