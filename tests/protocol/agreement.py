"""What every process must compute alike, as one line; `test_processes` runs it under other hash seeds."""

import hashlib

from pagoda_protocol.addresses import block_address, chain_addresses, self_test_address
from pagoda_protocol.annotations import PrefixHit, encode_prefix_hits
from pagoda_protocol.digests import request_points
from pagoda_protocol.namespace import Namespace
from pagoda_protocol.tenants import digest_secret, tenant_root, tenant_tag

SECRET = bytes(range(32))


def fingerprint() -> str:
    """Return the hashes of everything that crosses processes, from inputs that hold dicts and sets."""
    namespace = Namespace("c" * 64, "e" * 64, "Float32", 16).digest()
    root = tenant_root(SECRET, namespace, "tenant:acme")
    addresses = chain_addresses(root, range(1000), 16)
    extra = block_address(root, [1], dict.fromkeys({3, 1, 2}, b"x"))
    body = {
        "model": "m",
        "tools": [dict.fromkeys({"b", "a", "c"}, 1)],
        "messages": [{"role": "user", "content": "塔" * 500}],
    }
    points = request_points(digest_secret(SECRET), "tenant:acme", bytes(16), body)
    hits = encode_prefix_hits({PrefixHit(bytes([n] * 16), 16, "ram", 1) for n in range(9)})
    said = [self_test_address(), *addresses, extra, *(point.digest for point in points), hits.encode()]
    return hashlib.sha256(b"".join(said)).hexdigest() + f" {tenant_tag(SECRET, 'tenant:acme')}"


if __name__ == "__main__":
    print(fingerprint())  # noqa: T201
