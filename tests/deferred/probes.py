"""All probes: importing this fills the table."""

from . import probes_memory, probes_modes, probes_objects, probes_processes, probes_reads, probes_writes

__all__ = ["probes_memory", "probes_modes", "probes_objects", "probes_processes", "probes_reads", "probes_writes"]
