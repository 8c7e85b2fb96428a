"""Which blocks this node holds in RAM or on disk, and whether each can be reached: its chain is whole over both.

Rules: pure. Blocks are known by the first half of their address, as records name their parents; a second address with
the same half, or another place in a chain, is refused. `is_rooted` is kept up to date with every change, so that
nobody has to walk a chain to ask.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

KEY_BYTES = 16
RAM, DISK = 1, 2


@dataclass(slots=True, eq=False)
class Link:
    """A block in its chain. `tiers` has a bit for each tier that holds it."""

    address: bytes  # 32
    parent: bytes  # 16
    index: int
    tiers: int = 0
    is_rooted: bool = False


class Chains:
    """See the head of this file."""

    def __init__(self) -> None:
        # Called with a link that became reachable, or no longer is
        self.on_rooted: Callable[[Link], None] = lambda link: None
        self._links: dict[bytes, Link] = {}
        # By the parent's key; most blocks have one child, which needs no set
        self._children: dict[bytes, Link | set[Link]] = {}

    def __len__(self) -> int:
        return len(self._links)

    def get(self, address: bytes) -> Link | None:
        """Return the link of `address`, whatever tier it is in."""
        link = self._links.get(address[:KEY_BYTES])
        return link if link is not None and link.address == address else None

    def is_rooted(self, address: bytes) -> bool:
        """Whether `address` and all that lies before it is here."""
        link = self.get(address)
        return link is not None and link.is_rooted

    def upwards(self, link: Link) -> Iterator[Link]:
        """Yield `link` and then what lies before it, as far as it is here."""
        current: Link | None = link
        for _ in range(link.index + 1):  # whatever records say of their parents, a walk ends
            if current is None:
                return
            yield current
            current = self._links.get(current.parent) if current.index else None

    def children(self, link: Link) -> Iterator[Link]:
        """Yield what follows on `link`."""
        found = self._children.get(link.address[:KEY_BYTES])
        if isinstance(found, Link):
            yield found
        elif found is not None:
            yield from found

    def add(self, tier: int, address: bytes, parent: bytes, index: int) -> Link | None:
        """Say that `tier` holds the block; None when it cannot be told apart from another one."""
        key, parent = address[:KEY_BYTES], parent[:KEY_BYTES]
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(address, parent, index, tier)
            self._adopt(link)
            before = self._links.get(parent) if index else None
            if index == 0 or (before is not None and before.is_rooted):
                self._set_rooted(link, True)
        elif (link.address, link.parent, link.index) != (address, parent, index):
            return None
        link.tiers |= tier
        return link

    def remove(self, tier: int, address: bytes) -> None:
        """Say that `tier` holds the block no longer."""
        link = self.get(address)
        if link is None:
            return
        link.tiers &= ~tier
        if link.tiers:
            return
        del self._links[address[:KEY_BYTES]]
        self._disown(link)
        self._set_rooted(link, False)

    def clear(self, tier: int) -> None:
        """Say that `tier` holds nothing any more."""
        for link in [link for link in self._links.values() if link.tiers & tier]:
            self.remove(tier, link.address)

    def check_integrity(self) -> None:
        """Assert that links, children and reachability agree."""
        num_children = 0
        for key, link in self._links.items():
            assert link.address[:KEY_BYTES] == key, "a link lies under a foreign address"
            assert link.tiers, "a link that no tier holds"
            before = self._links.get(link.parent) if link.index else None
            assert link.is_rooted == (link.index == 0 or (before is not None and before.is_rooted)), "wrong root"
            for child in self.children(link):
                assert child.parent == key, "a child of somebody else"
        for found in self._children.values():
            num_children += 1 if isinstance(found, Link) else len(found)
        assert num_children == len(self._links), "a link is lost"

    def _adopt(self, link: Link) -> None:
        found = self._children.get(link.parent)
        if found is None:
            self._children[link.parent] = link
        elif isinstance(found, Link):
            self._children[link.parent] = {found, link}
        else:
            found.add(link)

    def _disown(self, link: Link) -> None:
        found = self._children[link.parent]
        if isinstance(found, Link):
            del self._children[link.parent]
        else:
            found.discard(link)
            if not found:
                del self._children[link.parent]

    def _set_rooted(self, link: Link, is_rooted: bool) -> None:
        waiting = [link]
        while waiting:
            current = waiting.pop()
            if current.is_rooted == is_rooted:
                continue
            current.is_rooted = is_rooted
            self.on_rooted(current)
            waiting.extend(child for child in self.children(current) if child.index)
