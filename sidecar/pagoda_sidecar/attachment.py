"""One life of one engine as the sidecar sees it: from Attach to the end of its stream."""

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from pagoda_protocol.marks import next_mark
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.arena.slots.grants import Holder
from pagoda_sidecar.hints import Head

MAX_REPLIES = 1024


@dataclass(eq=False)
class Attachment:
    """Who is attached, and what must be remembered of its calls so that a repeat changes nothing."""

    request: pb.AttachRequest
    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    # Set when the engine must be told something new, and at the end
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_ended: bool = False
    has_handed_over: bool = False
    last_report: int = 0
    hit_ratio: float | None = None  # as the engine said last
    state: str = ""
    """The mark of all that it was told of the tiers, as the engine has it once it has read that."""
    _told: bytes = b""
    _replies: OrderedDict[str, pb.ReserveReply] = field(default_factory=OrderedDict)

    def tell(self, event: bytes) -> None:
        """Take in what the engine is told; the same once more is nothing new, to it neither."""
        if event != self._told:
            self._told = event
            self.state = next_mark(self.state, event)

    @property
    def holder(self) -> Holder:
        """Whom its leases belong to."""
        return Holder(self.id)

    @property
    def head(self) -> Head:
        """What the head of the hint stream says of it."""
        return Head(tuple(self.request.model_names), self.request.template_digest.hex(), self.request.block_tokens)

    def reply(self, request_id: str) -> pb.ReserveReply | None:
        """Return the answer this request got before."""
        return self._replies.get(request_id)

    def remember(self, request_id: str, reply: pb.ReserveReply) -> pb.ReserveReply:
        """Keep the answer for a repeat; the oldest is forgotten."""
        self._replies[request_id] = reply
        while len(self._replies) > MAX_REPLIES:
            self._replies.popitem(last=False)
        return reply
