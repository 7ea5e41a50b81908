"""Record a training script, analyse the recording, show the result."""
