"""Data pipelines of programs of today, in our words: a module for each kind."""

from benchmarks._programs import arrays, classification, detection, generation, multimodal, own_data, self_supervised
from benchmarks._programs._program import PROGRAMS

__all__ = [
    "PROGRAMS",
    "arrays",
    "classification",
    "detection",
    "generation",
    "multimodal",
    "own_data",
    "self_supervised",
]
