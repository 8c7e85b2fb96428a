"""Disk tiers in folders of their own, and records that say what they must hold."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from pagoda_protocol.addresses import chain_addresses
from pagoda_protocol.records import RecordHeader
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.folder import NewRecord
from pagoda_sidecar.disk.layout import sequence_of
from pagoda_sidecar.disk.settings import DiskSettings
from pagoda_sidecar.disk.tier import DiskTier

NAMESPACE = b"n" * 16
ROOT = b"r" * 32
PAYLOAD_BYTES = 5000
STRIDE = 4096 + 8192
QUICK = DiskSettings(first_probe_seconds=0.01, max_probe_seconds=0.05)
CAP = 1_000_000


def chain(num_blocks: int, seed: int = 0) -> list[bytes]:
    return chain_addresses(ROOT, range(seed * 1000, seed * 1000 + num_blocks * 2), 2)


def payload(address: bytes, size: int = PAYLOAD_BYTES) -> bytes:
    return random.Random(address).randbytes(size)


def record(chain_of: Sequence[bytes], index: int, tag: int = 1, namespace: bytes = NAMESPACE) -> NewRecord:
    address = chain_of[index]
    parent = chain_of[index - 1] if index else ROOT
    data = payload(address)
    header = RecordHeader(namespace, address, parent[:16], index, 2, len(data), tag, xxhash.xxh3_128_digest(data))
    return NewRecord(header, memoryview(data))


def records(chain_of: Sequence[bytes], tag: int = 1, namespace: bytes = NAMESPACE) -> list[NewRecord]:
    return [record(chain_of, index, tag, namespace) for index in range(len(chain_of))]


def reused(new: NewRecord, uses: int) -> NewRecord:
    return replace(new, uses=uses)


def folder_bytes(folder: Path) -> int:
    """What the tier's files and the folder itself take, by size or by blocks, whichever is more."""
    total = 0
    for path in (folder, *folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            status = path.lstat()
            total += max(status.st_size, status.st_blocks * 512)
    return total


def segment_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if sequence_of(path.name) is not None)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - many things are waited for, few of them tell
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def disk_tier(
    folder: Path,
    cap_bytes: int = CAP,
    settings: DiskSettings = QUICK,
    namespace: bytes = NAMESPACE,
    damage: list[str] | None = None,
) -> AsyncIterator[DiskTier]:
    """A tier that is on, checked and closed at the end."""
    found: list[str] = [] if damage is None else damage
    tier = DiskTier(folder, cap_bytes, Chains(), found.append, settings)
    tier.start()
    tier.set_namespace(namespace, PAYLOAD_BYTES)
    try:
        await until(tier.enabled)
        yield tier
        tier.check_integrity()
    finally:
        await tier.close()


async def fetch(tier: DiskTier, addresses: Sequence[bytes]) -> list[bool]:
    """Read; assert that whatever came is what it must be; say what came."""
    views = [bytearray(PAYLOAD_BYTES) for _ in addresses]
    came = [False] * len(addresses)
    released = [0] * len(addresses)

    def on_ready(number: int, header: RecordHeader) -> None:
        assert header.address == addresses[number]
        came[number] = True

    def on_released(number: int) -> None:
        released[number] += 1

    await tier.fetch(addresses, [memoryview(view) for view in views], on_ready, on_released)
    await until(lambda: released == [1] * len(addresses))
    for address, view, has_come in zip(addresses, views, came, strict=True):
        assert not has_come or bytes(view) == payload(address)
    return came
