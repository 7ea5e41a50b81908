"""Measurement for commands and benchmarks: loop rates, repeats, records."""
