"""Record a training script, analyse the recording, report the result."""
