"""``fastload doctor``: check the machine."""
