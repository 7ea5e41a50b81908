"""Read a dataset, its transforms and collate function into a recipe that C++ can run."""
