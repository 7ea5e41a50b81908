"""What commands and benchmarks measure with: rates of a training loop, repeats, the record of a run."""
