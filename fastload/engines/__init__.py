"""Engines turn index batches into host batches."""
