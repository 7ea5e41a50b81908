"""Who takes part in the benchmarks against peers: one module per library, each contender in a process of its own."""
