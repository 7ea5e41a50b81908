"""Users' programs that make tensors of images in worker processes, and their outcomes."""
