"""What profilers record of a training loop, and how it is recorded."""
