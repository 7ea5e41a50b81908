"""Datasets of images that lie elsewhere than in folders: in archives, tables and object stores."""

__all__: list[str] = []
