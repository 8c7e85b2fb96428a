"""What a kill leaves in the name of a lease that is settled already is held until an engine attaches, and no longer."""

from pathlib import Path

from pagoda_sidecar.arena.file import ArenaFile, allocate, open_kept
from pagoda_sidecar.arena.slots.grants import Holder, Run
from pagoda_sidecar.arena.tier import RamTier
from tests.sidecar.support import NAMESPACE, ROOT, chain

FILE_BYTES = 20_480 + 4096 + 8 * 4096


def opened(arena: ArenaFile) -> RamTier:
    return RamTier(arena, NAMESPACE, 0, lambda: 0.0, lambda: False)


def test_a_fetch_that_outlives_its_lease_and_dies_with_the_sidecar_holds_its_slot_until_the_attach(
    tmp_path: Path,
) -> None:
    arena = allocate(tmp_path / "arena", FILE_BYTES, lambda done: None, lambda: False)
    arena.fix_geometry(64)
    tier = opened(arena)
    tier.attached()
    tier.grant("load", Holder(b"a" * 16), Run(chain(2), ROOT, 0, 2), can_fetch=True)
    tier.settle("load")  # the engine has lost interest; the pool's answer is still on its way into the slots
    arena.close()

    killed = opened(open_kept(tmp_path / "arena", FILE_BYTES))
    assert killed.leases.num_quarantined_slots == 2, "an engine lives: nobody knows who was writing"
    killed.attached()
    assert killed.leases.num_quarantined_slots == 0
    assert killed.index.num_free == killed.index.num_slots
    killed.check_integrity()
    killed.arena.close()
