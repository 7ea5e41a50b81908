"""Samples that only Python can make, and the dialogue with the core about them."""
