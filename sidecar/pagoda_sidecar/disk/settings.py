"""What the disk tier may take in time, threads and memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiskSettings:
    """Bounds; the defaults are for a local disk of any kind."""

    read_seconds: float = 2.0
    """A group of records that has not come after so long is missed."""
    write_seconds: float = 10.0
    """One write, creation or removal that takes longer switches the tier off."""
    max_late_reads: int = 3
    """So many late or failed reads in a row switch the tier off."""
    num_readers: int = 3
    """Threads that read; one more writes."""
    group_bytes: int = 2**20
    """Adjacent records read in one call."""
    batch_bytes: int = 4 * 2**20
    """Records written, or moved by compaction, in one call."""
    check_seconds: float = 10.0
    """How often a tier that is on looks whether its files are there still."""
    first_probe_seconds: float = 0.5
    """How long after the tier went off it is tried again; doubling from then on …"""
    max_probe_seconds: float = 30.0
    """… up to this."""
