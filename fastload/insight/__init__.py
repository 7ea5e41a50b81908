"""What the loader did, measured and named."""
