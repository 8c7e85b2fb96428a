"""What a request must look like before anything is done with it. Pure; refuses with a message that names the field."""

import math
from collections.abc import Sequence

from pagoda_protocol.addresses import ADDRESS_BYTES, SELF_TEST_ADDRESS
from pagoda_protocol.digests import DIGEST_BYTES, DIGEST_VERSION
from pagoda_protocol.namespace import NAMESPACE_BYTES
from pagoda_protocol.tier import PROTOCOL_VERSION
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_sidecar.arena.slots.grants import NewBlock, Run

MAX_ADDRESSES = 1 << 17  # two million tokens in blocks of 16; to look up more would keep the control loop for long
MAX_REQUEST_ID = 128
PROCESS_ID_BYTES = 16
MAX_LEASES = 4096  # in one call
MAX_MODEL_NAMES = 64
MAX_MODEL_NAME = 253
PLACES = (pb.TIER_NAME_UNSPECIFIED, pb.TIER_NAME_DISK, pb.TIER_NAME_POOL)
_LOAD_AMOUNTS = (
    "outstanding_seconds",
    "prefill_tokens_per_second",
    "free_work_seconds",
    "ram_seconds_per_token",
    "disk_seconds_per_token",
    "hit_ratio",
)


class MalformedError(ValueError):
    """The caller's bytes make no sense, whatever the state."""


class SkewError(ValueError):
    """The caller speaks another version; `reason` is a metric label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_versions(request: pb.AttachRequest) -> None:
    """Refuse an engine that would not understand us, or whose hashes differ (it would never hit: E16, E17).

    Raises:
        SkewError: naming both sides.
    """
    if request.protocol_version != PROTOCOL_VERSION:
        raise SkewError(
            "protocol_version",
            f"protocol version: the engine speaks {request.protocol_version}, this sidecar {PROTOCOL_VERSION}",
        )
    if request.digest_version != DIGEST_VERSION:
        raise SkewError(
            "digest_version",
            f"digest version: the engine speaks {request.digest_version}, this sidecar {DIGEST_VERSION}",
        )
    if request.address_self_test != SELF_TEST_ADDRESS:
        raise SkewError(
            "address_self_test",
            f"address self-test: the engine computes {request.address_self_test.hex()}, "
            f"this sidecar {SELF_TEST_ADDRESS.hex()}",
        )


def check_attach(request: pb.AttachRequest) -> None:
    """Refuse an attach whose fields have impossible values.

    Raises:
        MalformedError: naming the field.
    """
    _length("process_id", request.process_id, PROCESS_ID_BYTES)
    _length("namespace", request.namespace, NAMESPACE_BYTES)
    _length("template_digest", request.template_digest, DIGEST_BYTES)
    _range("payload_bytes", request.payload_bytes, 1, 2**32 - 1)
    _range("block_tokens", request.block_tokens, 1, 2**20)
    _range("codec", request.codec, 0, 255)
    _range("model_names (number)", len(request.model_names), 0, MAX_MODEL_NAMES)
    for index, name in enumerate(request.model_names):
        _range(f"model_names[{index}] (length)", len(name), 1, MAX_MODEL_NAME)


def addresses(name: str, values: Sequence[bytes]) -> list[bytes]:
    """Return `values` as a list of addresses.

    Raises:
        MalformedError: too many, or one of the wrong length.
    """
    _range(f"{name} (number)", len(values), 0, MAX_ADDRESSES)
    chain = list(values)
    if set(map(len, chain)) - {ADDRESS_BYTES}:  # rare, and a name made for each address would cost more than the lookup
        for index, value in enumerate(chain):
            _length(f"{name}[{index}]", value, ADDRESS_BYTES)
    return chain


def request_id(value: str) -> str:
    """Return a usable request id.

    Raises:
        MalformedError: empty or overlong.
    """
    _range("request_id (length)", len(value), 1, MAX_REQUEST_ID)
    return value


def run(request: pb.LoadRequest) -> Run:
    """Return the run a load asks for.

    Raises:
        MalformedError: naming the field.
    """
    chain = addresses("addresses", request.addresses)
    _length("root", request.root, ADDRESS_BYTES)
    if len(set(chain)) < len(chain):
        raise MalformedError("addresses: a chain comes by no address twice")
    _range("first", request.first, 0, len(chain))
    _range("stop", request.stop, request.first, len(chain))
    return Run(chain, request.root, request.first, request.stop)


def new_blocks(request: pb.ReserveRequest) -> list[NewBlock]:
    """Return the blocks a reserve asks slots for.

    Raises:
        MalformedError: naming the field.
    """
    _range("blocks (number)", len(request.blocks), 0, MAX_ADDRESSES)
    blocks = []
    for index, block in enumerate(request.blocks):
        _length(f"blocks[{index}].address", block.address, ADDRESS_BYTES)
        _length(f"blocks[{index}].parent", block.parent, ADDRESS_BYTES)
        blocks.append(NewBlock(block.address, block.parent, block.index, block.tokens, block.tenant_tag))
    return blocks


def check_commit(request: pb.CommitRequest, payload_bytes: int) -> None:
    """Refuse a commit with a checksum or a length that cannot be.

    Raises:
        MalformedError: naming the field.
    """
    _range("blocks (number)", len(request.blocks), 0, MAX_ADDRESSES)
    for index, block in enumerate(request.blocks):
        _length(f"blocks[{index}].xxh3_128", block.xxh3_128, 16)
        _range(f"blocks[{index}].payload_bytes", block.payload_bytes, payload_bytes, payload_bytes)


def check_report(request: pb.ReportRequest) -> None:
    """Refuse a report with bytes of the wrong length, or a load that is no amount.

    Raises:
        MalformedError: naming the field.
    """
    _range("rows (number)", len(request.rows), 0, MAX_ADDRESSES)
    for index, row in enumerate(request.rows):
        _length(f"rows[{index}].digest", row.digest, DIGEST_BYTES)
        _length(f"rows[{index}].address", row.address, ADDRESS_BYTES)
    for name in ("device_added", "device_removed", "touched", "parked"):
        addresses(name, getattr(request, name))
    for name in _LOAD_AMOUNTS:
        _amount(f"load.{name}", getattr(request.load, name))


def check_settle(request: pb.SettleRequest) -> None:
    """Refuse a settlement of more than there can be.

    Raises:
        MalformedError: naming the field.
    """
    _range("lease_ids (number)", len(request.lease_ids), 0, MAX_LEASES)
    _range("suspect_slots (number)", len(request.suspect_slots), 0, MAX_ADDRESSES)


def check_place(request: pb.PlaceRequest) -> None:
    """Refuse a placement of no block, into no tier below RAM, or with a time that is none.

    Raises:
        MalformedError: naming the field.
    """
    _length("address", request.address, ADDRESS_BYTES)
    _amount("budget_seconds", request.budget_seconds)
    if request.tier not in PLACES:
        raise MalformedError(f"tier: expected one of {PLACES}, got {request.tier}")


def check_hand_over(request: pb.HandOverRequest) -> None:
    """Refuse a hand-over with a time that is none.

    Raises:
        MalformedError: naming the field.
    """
    _amount("budget_seconds", request.budget_seconds)


def _amount(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0:
        raise MalformedError(f"{name}: expected a number of at least 0, got {value}")


def _length(name: str, value: bytes, expected: int) -> None:
    if len(value) != expected:
        raise MalformedError(f"{name}: expected {expected} bytes, got {len(value)}")


def _range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise MalformedError(f"{name}: expected {low} to {high}, got {value}")
