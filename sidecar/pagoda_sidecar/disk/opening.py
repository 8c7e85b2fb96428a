"""What a restart finds in the folder: segments skimmed in threads, records of our namespace taken into the index."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from pagoda_protocol.records import PROOF, RecordHeader
from pagoda_sidecar.disk.folder import Found, SegmentFolder
from pagoda_sidecar.disk.index import DiskIndex
from pagoda_sidecar.disk.layout import following
from pagoda_sidecar.disk.threads import DiskThreads, result_of

SKIM_SECONDS = 30.0
LIST_SECONDS = 10.0
# Segments skimmed ahead of what the index has taken, and records it takes before others get the loop
NUM_AHEAD = 8
RECORDS_PER_TURN = 256


@dataclass(frozen=True)
class Content:
    """What a folder holds beside its records."""

    epoch: bytes
    next_sequence: int


async def load_index(
    folder: SegmentFolder, threads: DiskThreads, index: DiskIndex, namespace: bytes, payload_bytes: int
) -> Content:
    """Take the folder for ours and its records into `index`, oldest first, so that of two the newer one stays.

    Records of another namespace and proofs stay where they are, as garbage that makes its segment worth less. What a
    killed writer left torn is cut off.

    Raises:
        OSError: the folder cannot be used (now).
    """
    await result_of(threads.write(folder.prepare), "a probe", LIST_SECONDS)
    sequences = await result_of(threads.read(folder.sequences), "listing the folder", LIST_SECONDS)
    epoch = await result_of(threads.read(folder.epoch), "a read", LIST_SECONDS)
    if epoch is None or not sequences:
        epoch = await result_of(threads.write(folder.new_epoch), "a write", LIST_SECONDS)
    newest = 0
    for skimming in _ahead(folder, threads, sequences):
        found = await result_of(skimming, "reading the index", SKIM_SECONDS)
        file_bytes = found.file_bytes
        if found.end < file_bytes:
            await result_of(threads.write(folder.trim, found.sequence, found.end), "a write", LIST_SECONDS)
            file_bytes = found.end
        if file_bytes:  # else it was removed, and says nothing of what numbers are in use
            newest = found.sequence
            await _take(index, found, file_bytes, namespace, payload_bytes)
    return Content(epoch, following(newest))


def remove_all(folder: SegmentFolder) -> None:
    """Remove every segment. Blocks.

    Raises:
        OSError: not all are gone.
    """
    for sequence in folder.sequences():
        folder.remove(sequence)


def _ahead(folder: SegmentFolder, threads: DiskThreads, sequences: list[int]) -> "Iterator[Future[Found]]":
    """Yield one skim after another, with some more under way."""
    under_way: list[Future[Found]] = []
    for sequence in sequences:
        under_way.append(threads.read(folder.skim, sequence, sequence == sequences[-1]))
        if len(under_way) > NUM_AHEAD:
            yield under_way.pop(0)
    yield from under_way


async def _take(index: DiskIndex, found: Found, file_bytes: int, namespace: bytes, payload_bytes: int) -> None:
    segment = index.open_segment(found.sequence, file_bytes)
    for number, (offset, header) in enumerate(found.records):
        if _is_wanted(header, namespace, payload_bytes):
            index.add(header, segment, offset)
        if number % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    index.advance(len(found.records))


def _is_wanted(header: RecordHeader, namespace: bytes, payload_bytes: int) -> bool:
    is_ours = header.namespace == namespace and header.payload_bytes == payload_bytes
    return is_ours and not header.flags & PROOF
