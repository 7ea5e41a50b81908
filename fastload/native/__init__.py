"""Epochs made by decode threads."""
