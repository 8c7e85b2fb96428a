"""Pages of the device and who holds them.

    free ──take──► referenced (holders > 0) ──release──► cached (in the prefix table) ──evict──► free
                                             └─────────► free (not in it)

A holder is a request, a load that writes into the page, or a store that reads it. This file counts; what is cached is
the prefix table's business.
"""

from collections.abc import Callable


class Pages:
    """Reference counts of all pages. A page is either in the free list or in use; only the latter can be held."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.on_free: Callable[[int], None] | None = None  # told of each page that enters the free list (tests)
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = [True] * num_pages
        self._holders = [0] * num_pages
        self._num_referenced = 0

    @property
    def num_free(self) -> int:
        """Pages nobody uses."""
        return len(self._free)

    @property
    def num_referenced(self) -> int:
        """Pages somebody holds."""
        return self._num_referenced

    @property
    def num_cached(self) -> int:
        """Pages in use that nobody holds: their blocks are in the prefix table."""
        return self.num_pages - len(self._free) - self._num_referenced

    def holders(self, page: int) -> int:
        """How many hold `page`."""
        return self._holders[page]

    def take(self) -> int:
        """Return a free page with one holder. There must be one."""
        page = self._free.pop()
        self._is_free[page] = False
        self._holders[page] = 1
        self._num_referenced += 1
        return page

    def hold(self, page: int) -> int:
        """Add a holder; return how many there are now."""
        assert not self._is_free[page], f"page {page} is held though it is free"
        self._num_referenced += self._holders[page] == 0
        self._holders[page] += 1
        return self._holders[page]

    def release(self, page: int) -> int:
        """Remove a holder; return how many are left. The page stays in use until `give_back`."""
        assert self._holders[page] > 0, f"page {page} is released more often than held"
        self._holders[page] -= 1
        self._num_referenced -= self._holders[page] == 0
        return self._holders[page]

    def give_back(self, page: int) -> None:
        """Put a page without holders into the free list."""
        assert self._holders[page] == 0, f"page {page} is freed while {self._holders[page]} hold it"
        assert not self._is_free[page], f"page {page} is freed twice"
        self._is_free[page] = True
        self._free.append(page)
        if self.on_free is not None:
            self.on_free(page)

    def check_integrity(self) -> None:
        """Assert that the free list and the counts agree."""
        assert len(set(self._free)) == len(self._free)
        assert all(self._is_free[page] and self._holders[page] == 0 for page in self._free)
        assert sum(self._is_free) == len(self._free)
        assert sum(num > 0 for num in self._holders) == self._num_referenced
