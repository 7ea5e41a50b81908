"""Pillow images whose pixels are made when they are used."""
