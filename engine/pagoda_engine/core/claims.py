"""Who has undertaken to compute or load which block: the state *computing(owner)*.

Rules: one owner per address; a request waits only for the claim of an earlier arrival, so waiting cannot form a circle;
a claim ends when its block is published or its owner goes, and an owner without progress may be passed over.
"""

from pagoda_engine.core.request import Request


class Claims:
    """Address → owner."""

    def __init__(self) -> None:
        self._owners: dict[bytes, Request] = {}
        self._by_owner: dict[Request, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, address: bytes) -> Request | None:
        """The request that has undertaken to supply this block."""
        return self._owners.get(address)

    def leader(self, request: Request, address: bytes, oldest_progress: float) -> Request | None:
        """The request that `request` should wait for: an earlier one, with progress since `oldest_progress`."""
        owner = self._owners.get(address)
        if owner is None or owner.order >= request.order or owner.progressed_at < oldest_progress:
            return None
        return owner

    def claim(self, request: Request, address: bytes) -> None:
        """Make `request` the owner, instead of whoever was."""
        self.fulfil(address)
        self._owners[address] = request
        self._by_owner.setdefault(request, set()).add(address)

    def fulfil(self, address: bytes) -> None:
        """End a claim, if there is one: its block is there, or somebody else takes it over."""
        owner = self._owners.pop(address, None)
        if owner is not None:
            self._by_owner[owner].discard(address)
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def drop(self, request: Request) -> None:
        """End every claim of `request`."""
        for address in self._by_owner.pop(request, ()):
            del self._owners[address]

    def check_integrity(self, requests: set[Request]) -> None:
        """Assert that the two directions agree and that every owner is one of `requests`."""
        assert set(self._by_owner) <= requests
        assert sum(map(len, self._by_owner.values())) == len(self._owners)
        assert all(self._owners[address] is owner for owner, mine in self._by_owner.items() for address in mine)
