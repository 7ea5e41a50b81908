"""Random generators: their states, packed as text, and seeds by sample."""
