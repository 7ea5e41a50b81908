"""A loader's counts and times, summed over threads and processes, and the verdict on them."""
