"""``fastload check``: read every image once and name the broken and odd ones."""
