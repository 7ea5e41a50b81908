"""Device side: copy stream, events, lifetime, epilogue."""
