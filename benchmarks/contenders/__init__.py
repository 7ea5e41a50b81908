"""Contenders of the peer benchmarks: one module per library, one process per contender."""
