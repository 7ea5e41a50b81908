"""What is done to the worker processes and iterators of torch's DataLoader: start and end them whole, copy a loader."""
