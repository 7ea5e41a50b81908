"""The device side: copy stream, events, lifetime, epilogue."""
