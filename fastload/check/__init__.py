"""The comparison of first samples with torch's."""
