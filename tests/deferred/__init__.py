"""Programs and probes of a user's own that make tensors of images in worker processes, and their outcomes."""
