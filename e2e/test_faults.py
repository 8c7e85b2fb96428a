"""The five-minute form of `make faults`: the real sidecar and memcached under every kind of fault, held to an oracle.

Another length in seconds: PAGODA_FAULT_SECONDS. A run that failed says its seed; PAGODA_FAULT_SEED tells it again.
"""

import os
import secrets

import pytest

from tests.faults.storm import Storm
from tests.faults.world import running_world
from tests.support.memcached import needs_memcached

SECONDS = float(os.environ.get("PAGODA_FAULT_SECONDS", "300"))


@needs_memcached
@pytest.mark.timeout(SECONDS + 600)
def test_e24_minutes_of_random_faults_leave_no_wrong_byte_no_hang_and_no_lease() -> None:
    seed = os.environ.get("PAGODA_FAULT_SEED") or secrets.token_hex(4)
    with running_world() as world:
        try:
            outcome = Storm(world, seed).run(10**9, SECONDS)
        except AssertionError as error:
            raise AssertionError(f"PAGODA_FAULT_SEED={seed}: {error}\n{world.describe()}") from error
    rate = outcome.num_operations / outcome.seconds
    print(f"seed {seed}: {outcome.num_operations} operations, {rate:.0f}/s, {outcome.faults.total()} faults")
    assert not outcome.wrongs, f"PAGODA_FAULT_SEED={seed}: {outcome.wrongs}"
    loaded = {name for name in outcome.counts if name.startswith("loaded.")}
    assert loaded == {"loaded.ram", "loaded.disk", "loaded.pool"}, f"a tier was never read from: {outcome.counts}"
    kinds = {name.split(".")[0] for name in outcome.faults}
    assert kinds >= {"fetch", "store", "ack", "arena", "disk", "kill", "black_hole", "did"}, f"not every kind: {kinds}"
