"""A profile for people: tables in a terminal, a page with a timeline, a picture."""
