"""Choose the number of workers and decode threads from measured throughput."""
