"""Start and end torch's worker processes and iterators cleanly; make views of loaders."""
