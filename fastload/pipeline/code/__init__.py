"""What users' functions do."""
