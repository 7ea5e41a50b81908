"""Memory that worker processes write batches into, pinned slots and memory files, and a GPU's."""
