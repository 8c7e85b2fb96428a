"""The named blocks of the RAM tier as the forest their chains make, in runs.

Invariants (`check_integrity`):
 - a block lies under its own key, and is among the children of its parent's key;
 - it is in exactly one run; nothing branches off inside a run.

Rules: pure; knows nothing of slots. Policy and keeper of a run hear when it begins, grows, is split or ends.
"""

import itertools
from collections.abc import Callable, Iterator

from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.policy import EvictionPolicy
from pagoda_sidecar.arena.slots.run import ChainRun, run_of


class Forest:
    """See the head of this file."""

    def __init__(self, policy: EvictionPolicy) -> None:
        # Called with a run that was the end of another until now
        self.on_split: Callable[[ChainRun], None] = lambda run: None
        self._policy = policy
        self._blocks: dict[bytes, Block] = {}
        self._children: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def find(self, key: bytes) -> Block | None:
        """Return the block of `key`, the first half of its address."""
        return self._blocks.get(key)

    def parent_of(self, block: Block) -> Block | None:
        """Return the block before `block`, if it is here."""
        return self._blocks.get(block.parent) if block.index else None

    def children_of(self, block: Block) -> list[Block]:
        """Return the blocks that follow on `block`."""
        return [self._blocks[key] for key in self._children.get(block.key, ())]

    def is_leaf(self, block: Block) -> bool:
        """Whether no block follows on `block`."""
        return block.key not in self._children

    def chain(self, block: Block) -> Iterator[Block]:
        """Yield `block` and then what lies before it, backwards."""
        current: Block | None = block
        while current is not None:
            yield current
            current = self.parent_of(current)

    def runs(self, block: Block) -> Iterator[ChainRun]:
        """Yield the run of `block` and those before it, backwards."""
        current: Block | None = block
        while current is not None:
            run = run_of(current)
            yield run
            current = self.parent_of(self._blocks[run.head])

    def before(self, block: Block, steps: int) -> Block:
        """Return the block `steps` before `block` in its chain, which must be here."""
        for _ in range(steps):
            parent = self.parent_of(block)
            assert parent is not None, "a run is consecutive"
            block = parent
        return block

    def fits(self, key: bytes, parent: bytes, index: int) -> bool:
        """Whether a new block is right behind its parent and right before its children, as far as they are here.

        Real addresses are never otherwise; whatever an engine says of them, no walk goes in a circle.
        """
        before = self._blocks.get(parent)  # also of an index 0: it would be a child that its parent does not hear of
        if key == parent or key in self._blocks or (before is not None and before.index != index - 1):
            return False
        return all(self._blocks[child].index == index + 1 for child in self._children.get(key, ()))

    def add(self, block: Block) -> None:
        """Give `block` its place behind its parent and before its children, those of them that are here."""
        parent = self.parent_of(block)
        run = None if parent is None else self._open_run(parent)
        self._blocks[block.key] = block
        self._children.setdefault(block.parent, set()).add(block.key)
        if run is None:
            block.run = ChainRun(block.key, block, 1, is_closed=not self.is_leaf(block))
            self._policy.begin(block.run)
            return
        block.run, run.tail = run, block
        run.is_closed = not self.is_leaf(block)
        self._resize(run, 1)

    def split(self, block: Block) -> ChainRun:
        """End the run of `block` with it; return the run that what came after it is from now on."""
        run = run_of(block)
        end = ChainRun(b"", run.tail, is_closed=run.is_closed)
        num_uses, link = 0, run.tail
        while link is not block:
            link.run, end.head = end, link.key
            end.num_blocks += 1
            num_uses += link.num_uses
            link = self.before(link, 1)
        run.tail, run.is_closed = block, True
        run.num_blocks -= end.num_blocks
        self._policy.split(run, end, num_uses)
        if run.keeper is not None:
            run.keeper.split(end)
        self.on_split(end)
        return end

    def remove(self, block: Block) -> Block | None:
        """Take out `block`, which must be the last of its run; return its parent."""
        run, parent = run_of(block), self.parent_of(block)
        assert block is run.tail, "a run loses its last block first"
        del self._blocks[block.key]
        siblings = self._children[block.parent]
        siblings.discard(block.key)
        if not siblings:
            del self._children[block.parent]
        block.run = None
        if run.num_blocks > 1:
            assert parent is not None, "a run is consecutive"
            run.tail = parent
        self._resize(run, -1)
        return parent

    def _open_run(self, parent: Block) -> ChainRun | None:
        """Return the run that a new block after `parent` makes longer; None if it begins one of its own."""
        run = run_of(parent)
        if not self.is_leaf(parent):
            if parent is not run.tail:
                self.split(parent)
            run.is_closed = True
        return None if run.is_closed else run

    def _resize(self, run: ChainRun, change: int) -> None:
        run.num_blocks += change
        if run.keeper is not None:
            run.keeper.resize(run, change)
        if run.num_blocks:
            self._policy.resize(run, change)
        else:
            self._policy.end(run)

    def check_integrity(self) -> None:
        """Assert the invariants at the head of this file."""
        children: dict[bytes, set[bytes]] = {}
        members: dict[ChainRun, list[Block]] = {}
        for key, block in self._blocks.items():
            assert block.key == key, "a block lies under a foreign address"
            children.setdefault(block.parent, set()).add(key)
            members.setdefault(run_of(block), []).append(block)
        assert children == self._children, "children and parents disagree"
        for run, blocks in members.items():
            blocks.sort(key=lambda block: block.index)
            assert (run.head, run.tail, run.num_blocks) == (blocks[0].key, blocks[-1], len(blocks)), "a run is wrong"
            for link, following in itertools.pairwise(blocks):
                assert self._children[link.key] == {following.key}, "something branches off inside a run"
