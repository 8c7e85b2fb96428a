"""A request: what a caller hands in, what it gets back, and what the engine knows of it in between.

`Request` is touched by the engine's thread only. The blocks of a request, by position:

    0 ……………… num_computed ……………… len(tokens)
    │ blocks (full, in the prefix table, shared) │ partial block │ to compute │
    │ pages ………………………………………………… (may reach further: pages taken for a load)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagoda_engine.core.accounting import Ledger
from pagoda_engine.model.interface import Sampling
from pagoda_protocol.addresses import block_address

if TYPE_CHECKING:
    from pagoda_engine.core.load_job import LoadJob
    from pagoda_engine.core.prefix import Block


@dataclass(frozen=True)
class Crossing:
    """Where a chain leaves a public prefix: from block `block_index` on it follows on `root` and is a tenant's own."""

    block_index: int  # at least 1
    root: bytes  # 32 bytes: what `pagoda_protocol.tenants.crossing` makes of the address before it
    tenant_tag: int  # u64


@dataclass(frozen=True)
class NewRequest:
    """What a caller wants. `prompt` must not change while the request lives."""

    request_id: str  # unique among the requests that live
    prompt: Sequence[int]
    root: bytes  # 32 bytes: what the caller's chain of blocks starts from
    tenant_tag: int  # u64, of the blocks before the crossing
    sampling: Sampling
    max_tokens: int  # tokens to generate at most, at least 1
    stop_token_ids: frozenset[int]
    arrival: float  # on the engine's clock
    crossing: Crossing | None = None  # None: the whole chain is in one scope
    replay_cause: str | None = None  # "n" for the second and further choices of one client request
    is_proof: bool = False  # the engine's own, to see that it works: counted nowhere


@dataclass(frozen=True)
class TokenEvent:
    """News of a request. After the one that has `finish` no other follows."""

    request_id: str
    tokens: tuple[int, ...]  # generated since the last event, with the stop token if one ended the request
    finish: str | None = None  # "stop" | "length" | "abort" | "error"
    sources: Mapping[str, int] | None = None  # with the first token: prompt tokens by source, sum = len(prompt)
    error: str | None = None  # with finish "error"


class RequestRejected(Exception):
    """The caller asked for what no engine state could give: a 4xx. `param` is the OpenAI name of the field."""

    def __init__(self, code: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


TokenSink = Callable[[TokenEvent], None]


@dataclass(eq=False)
class Request:
    """A request inside the engine."""

    new: NewRequest
    sink: TokenSink
    order: int  # of arrival: what "earlier" means everywhere
    block_tokens: int
    ledger: Ledger
    tokens: list[int]  # prompt, then generated
    addresses: list[bytes]  # of full blocks of `tokens`, as far as computed; see `address`
    progressed_at: float  # when a token of it was last supplied or it was admitted
    num_computed: int = 0  # tokens whose KV is in pages
    pages: list[int] = field(default_factory=list)
    blocks: "list[Block]" = field(default_factory=list)  # its full blocks, first to last; each one's page is in `pages`
    is_private: bool = False  # an address of it collided: no further block of it is shared
    load: "LoadJob | None" = None
    asked_blocks: int = 0  # blocks before this one need not be asked for below again
    leader: "Request | None" = None  # the earlier request whose block it waits for
    last_token_at: float | None = None
    unavoidable_tokens: float | None = None  # of its prompt, for any cache; known since it was first admitted

    @classmethod
    def open(cls, new: NewRequest, sink: TokenSink, order: int, block_tokens: int) -> "Request":
        """Make a waiting request, with the addresses it can hit: they are hashed here, in the caller's thread."""
        request = cls(
            new=new,
            sink=sink,
            order=order,
            block_tokens=block_tokens,
            ledger=Ledger(len(new.prompt)),
            tokens=list(new.prompt),
            addresses=[],
            progressed_at=new.arrival,
        )
        if request.num_reusable:
            request.address(request.num_reusable - 1)
        return request

    @property
    def request_id(self) -> str:
        """The caller's name for it."""
        return self.new.request_id

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.new.prompt)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.new.prompt)

    @property
    def num_left(self) -> int:
        """Tokens it may still generate."""
        return self.new.max_tokens - self.num_generated

    @property
    def num_blocks(self) -> int:
        """Blocks, full or not, that hold all its tokens so far."""
        return -(-len(self.tokens) // self.block_tokens)

    @property
    def num_reusable(self) -> int:
        """Blocks that a hit may cover: the last token is always computed, since the next one is sampled from it."""
        return (len(self.tokens) - 1) // self.block_tokens

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a load or for another request."""
        return (self.load is not None and self.load.is_awaited) or self.leader is not None

    @property
    def compute_stop(self) -> int:
        """Up to which token it computes in the next step at most: all of them, or what its load leaves to it."""
        if self.load is None or self.load.compute_stop is None:
            return len(self.tokens)
        return min(len(self.tokens), self.load.compute_stop)

    def block(self, index: int) -> tuple[int, ...]:
        """The tokens of full block `index`."""
        return tuple(self.tokens[index * self.block_tokens : (index + 1) * self.block_tokens])

    def root_of(self, index: int) -> bytes:
        """What the part of the chain that block `index` belongs to starts from: it tells scopes apart."""
        crossing = self.new.crossing
        return self.new.root if crossing is None or index < crossing.block_index else crossing.root

    def tag_of(self, index: int) -> int:
        """The tenant tag of block `index`."""
        crossing = self.new.crossing
        return self.new.tenant_tag if crossing is None or index < crossing.block_index else crossing.tenant_tag

    def address(self, index: int) -> bytes:
        """The address of full block `index`, all of whose tokens are known."""
        while (following := len(self.addresses)) <= index:
            root = self.root_of(following)
            is_first = following == 0 or root != self.root_of(following - 1)
            self.addresses.append(block_address(root if is_first else self.addresses[-1], self.block(following)))
        return self.addresses[index]
