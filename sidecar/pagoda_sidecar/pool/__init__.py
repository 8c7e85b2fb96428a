"""The memcached pool: the tier that all pods of a pool share.

    pool         MemcachedPool, what the sidecar uses
    nodes        PoolNode and pool-nodes.json           pure
    rendezvous   which node an address lives on         pure
    keys         item keys                              pure
    items        what an item holds, splitting, checks  pure
    meta         memcached's meta protocol              pure
    probes       which questions of existence need not be sent
    reads        probe and fetch on one connection
    stores       a batch of stores on one connection
    lane         which stores go in one batch
    connection   one exchange at a time, one deadline
    wire         a socket, bare or with TLS
    access       certificates, user and password
    node         one memcached: its connections, breaker and recovery
    states       which nodes answer, by everybody's word

What `pagoda_pool_operations_total` says became of each record:

    probe, fetch   hit, miss
    fetch          corrupt (see pagoda_integrity_failures_total{tier="pool"}), torn (a part was evicted)
    store          stored, exists, full, too_large, server_error, other_namespace,
                   corrupt (its slot changed after it was sealed)
    ping           answered, and why not
    all            refused, untrusted, denied, lost, timeout, garbage (see errors), breaker, busy, cancelled

Rules: a node that fails costs counted misses and one deadline, never an exception to the caller. Payload bytes go
from the socket into the caller's memory and back without a copy of ours. Nothing is written into a destination once
the call that lent it has returned or was cancelled.
"""

from pagoda_sidecar.pool.access import Access, AccessError, Credentials, access_files, read_access
from pagoda_sidecar.pool.counters import PoolCounters
from pagoda_sidecar.pool.nodes import PoolNode, parse_nodes
from pagoda_sidecar.pool.pool import STORED, MemcachedPool
from pagoda_sidecar.pool.probes import Probes
from pagoda_sidecar.pool.settings import PoolSettings

__all__ = [
    "STORED",
    "Access",
    "AccessError",
    "Credentials",
    "MemcachedPool",
    "PoolCounters",
    "PoolNode",
    "PoolSettings",
    "Probes",
    "access_files",
    "parse_nodes",
    "read_access",
]
