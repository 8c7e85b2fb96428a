"""Names, sizes and places of what lies in the disk tier's folder. Pure.

    <folder>/pagoda-<16 hex digits>.segment     records one after another; the number rises up to 2^48 - 1, then again
                                                from 1. A higher one, a folder or a link of such a name is foreign
    <folder>/pagoda-disk.epoch                  32 hex digits: one life of the folder's content; also the lock
    <folder>/pagoda-disk.probe                  there only while the tier tries whether it can write

    record:  0      record header, 128 bytes, then zeros
             4096   payload, padded to a multiple of 4096

Everything is aligned, on every file system alike, so that a folder can be read with O_DIRECT and without. A segment is
allocated in full when it is opened and cut behind its last record when it is closed.

What a file costs beyond its bytes (extent blocks, the folder itself) is set aside, so that the folder as `du` sees it
never exceeds the cap.
"""

import re

ALIGNMENT = 4096
SEGMENT_BYTES = 64 * 2**20
FILE_OVERHEAD_BYTES = 16 * 2**10
FOLDER_OVERHEAD_BYTES = 64 * 2**10
MIN_SEGMENTS = 4
USUAL_SEGMENTS = 8
EPOCH_NAME = "pagoda-disk.epoch"
PROBE_NAME = "pagoda-disk.probe"
EPOCH_BYTES = 16
MAX_SEQUENCE = 2**48 - 1

_SEGMENT_NAME = re.compile(r"pagoda-([0-9a-f]{16})\.segment")


def padded(size: int) -> int:
    """Return `size` rounded up to the alignment."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def record_bytes(payload_bytes: int) -> int:
    """Return what a record with such a payload takes in a segment."""
    return ALIGNMENT + padded(payload_bytes)


def segment_name(sequence: int) -> str:
    """Return the file name of segment `sequence`."""
    return f"pagoda-{sequence:016x}.segment"


def sequence_of(name: str) -> int | None:
    """Return which segment a file name means; None for foreign files."""
    match = _SEGMENT_NAME.fullmatch(name)
    sequence = 0 if match is None else int(match[1], 16)
    return sequence if 1 <= sequence <= MAX_SEQUENCE else None


def following(sequence: int) -> int:
    """Return the number after `sequence`; which of two is newer matters no more when it begins again."""
    return sequence + 1 if sequence < MAX_SEQUENCE else 1


def segment_bytes(cap_bytes: int, payload_bytes: int) -> int | None:
    """Return how large segments are under a cap of `cap_bytes` for the whole folder; None when too few would fit."""
    room = cap_bytes - FOLDER_OVERHEAD_BYTES
    usual = min(SEGMENT_BYTES, room // USUAL_SEGMENTS - FILE_OVERHEAD_BYTES) // ALIGNMENT * ALIGNMENT
    size = max(usual, record_bytes(payload_bytes))
    return size if MIN_SEGMENTS * (size + FILE_OVERHEAD_BYTES) <= room else None
