"""What a request holds on the device: every change of its pages and blocks goes through here.

Rules: a request's full blocks are published as soon as they are complete, and it then holds the table's page (which may
be another one with the same content, computed meanwhile by somebody else). It holds its whole chain, so nothing under
it can be evicted.
"""

from collections.abc import Iterable

from pagoda_engine.core.blocks import Pages
from pagoda_engine.core.claims import Claims
from pagoda_engine.core.prefix import Block, PrefixTable
from pagoda_engine.core.request import Request


class Residency:
    """The device's pages, blocks and claims."""

    def __init__(self, num_pages: int, block_tokens: int) -> None:
        self.pages = Pages(num_pages)
        self.table = PrefixTable(self.pages)
        self.claims = Claims()
        self._block_tokens = block_tokens

    def find_next(self, request: Request) -> Block | None:
        """Return the block that follows the request's last full one, if the device holds it."""
        index = len(request.blocks)
        parent = request.blocks[-1] if request.blocks else None
        return self.table.find(request.address(index), request.root_of(index), parent, request.block(index))

    def adopt(self, request: Request, block: Block) -> None:
        """Let the request use `block` as its next full one, in place of a page it may have there."""
        index = len(request.blocks)
        if index < len(request.pages) and request.pages[index] != block.page:
            self.table.release(request.pages[index])
            request.pages[index] = block.page
            self.table.hold(block.page)
        elif index == len(request.pages):
            request.pages.append(block.page)
            self.table.hold(block.page)
        request.blocks.append(block)

    def publish_next(self, request: Request, page: int) -> Block | None:
        """Share the request's next full block, completely written to `page`; None if it cannot be shared."""
        index = len(request.blocks)
        address = request.address(index)
        parent = request.blocks[-1] if request.blocks else None
        block = self.table.publish(address, request.root_of(index), parent, request.block(index), page)
        if block is None:
            request.is_private = True
            return None
        block.tenant_tag = request.tag_of(index)
        self.claims.fulfil(address)
        self.adopt(request, block)
        return block

    def publish_computed(self, request: Request) -> list[Block]:
        """Share every block that became full; return the ones that were new to the device."""
        added = []
        while not request.is_private and len(request.blocks) < request.num_computed // self._block_tokens:
            page = request.pages[len(request.blocks)]
            block = self.publish_next(request, page)
            if block is not None and block.page == page:
                added.append(block)
        return added

    def grow(self, request: Request, num_pages: int) -> bool:
        """Give the request pages until it has `num_pages`; False (and no change) if there are not enough."""
        pages = self.table.take(max(0, num_pages - len(request.pages)))
        if pages is None:
            return False
        request.pages.extend(pages)
        return True

    def cut(self, request: Request, num_pages: int) -> None:
        """Take away the pages from index `num_pages` on, last first, so that leaves are the first to be evicted."""
        assert num_pages >= len(request.blocks)
        while len(request.pages) > num_pages:
            self.table.release(request.pages.pop())

    def leave(self, request: Request) -> None:
        """Take away all the request holds: pages, blocks and claims."""
        self.claims.drop(request)
        request.blocks.clear()
        request.num_computed = 0
        self.cut(request, 0)

    def num_own_pages(self, request: Request) -> int:
        """How many pages would become available if the request left: its tail, up to the first that others need."""
        num = 0
        for index in range(len(request.pages) - 1, -1, -1):
            is_shared = self.pages.holders(request.pages[index]) > 1
            if is_shared or self._has_other_branch(request, index):
                break
            num += 1
        return num

    def _has_other_branch(self, request: Request, index: int) -> bool:
        if index >= len(request.blocks):
            return False
        return request.blocks[index].num_held_children > (index + 1 < len(request.blocks))

    def check_integrity(self, requests: Iterable[Request], other_holds: Iterable[int]) -> None:
        """Assert that holders are exactly the pages of `requests` and `other_holds`, and all chains are in place."""
        expected = [0] * self.pages.num_pages
        for page in other_holds:
            expected[page] += 1
        members = set(requests)
        for request in members:
            assert len(set(request.pages)) == len(request.pages), "one page twice in a page table"
            assert len(request.blocks) == request.num_computed // self._block_tokens or request.is_private
            for index, block in enumerate(request.blocks):
                assert block in self.table
                assert block.page == request.pages[index]
                assert block.index == index
            for page in request.pages:
                expected[page] += 1
        assert expected == [self.pages.holders(page) for page in range(self.pages.num_pages)]
        self.claims.check_integrity(members)
        self.table.check_integrity()
