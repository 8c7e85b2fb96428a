"""Aligned memory for reads and writes that cannot go straight where the payload lies."""

import ctypes
import mmap
import threading

from pagoda_sidecar.disk.layout import ALIGNMENT, padded


def aligned(size: int) -> memoryview:
    """Return new zeroed memory of at least `size` bytes, aligned and padded; it lives as long as the view."""
    return memoryview(mmap.mmap(-1, max(ALIGNMENT, padded(size))))


def is_aligned(view: memoryview) -> bool:
    """Whether O_DIRECT can read into and write from `view`, which must be writable for us to know."""
    if view.readonly or len(view) % ALIGNMENT or not view.contiguous:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % ALIGNMENT == 0


class Scratch(threading.local):
    """Each thread's own aligned memory, kept between uses and grown as needed."""

    def __init__(self) -> None:
        self._view = aligned(ALIGNMENT)

    def get(self, size: int) -> memoryview:
        """Return `size` bytes whose content is anything; they are the caller's until he asks again."""
        if len(self._view) < size:
            self._view = aligned(size)
        return self._view[:size]
