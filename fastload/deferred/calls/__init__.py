"""Record the calls that a program makes with deferred tensors, a family of functions each."""
