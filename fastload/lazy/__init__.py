"""Pillow images whose pixels are made when they are used; OpenCV's functions that read images."""
