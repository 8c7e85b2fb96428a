"""Tenants' shares from the file to the tiers: by tag, live, and without a word about names."""

import json
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from pagoda_protocol.tenants import digest_secret, key_hash, parse_tenants, tenant_tag
from pagoda_sidecar.client import BlockRecord, TierClient
from pagoda_sidecar.tenant_shares import Shares, TenantSharesFile, shares_by_tag
from pagoda_sidecar.worker import LOOK_AGAIN_SECONDS
from tests.sidecar.support import BLOCK_TOKENS, ROOT, SidecarProcess, chain, client_of, payload, wait_until

SECRET = bytes(range(32))
ACME, BOLT = (tenant_tag(SECRET, f"tenant:{name}") for name in ("acme", "bolt"))


def entry(name: str, **shares: float) -> dict[str, object]:
    return {"name": name, "keyHashes": [key_hash(name)], **shares}


def write(folder: Path, *entries: dict[str, object]) -> None:
    new = folder / "tenants.new"
    new.write_text(json.dumps({"tenants": entries}))
    new.rename(folder / "tenants.json")


def write_secret(folder: Path) -> None:
    (folder / "pool").write_bytes(SECRET)
    (folder / "digest").write_bytes(digest_secret(SECRET))


def test_only_who_has_a_cap_is_named_and_by_tag() -> None:
    tenants = parse_tenants(json.dumps({"tenants": [entry("acme", ramShare=0.5, diskShare=1), entry("bolt")]}))
    assert shares_by_tag(SECRET, tenants) == Shares(ram={ACME: 0.5}, disk={})


def test_the_file_is_followed_and_a_bad_version_keeps_the_last_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_secret(tmp_path)
    file = TenantSharesFile(tmp_path, tmp_path)
    assert not file.refresh(), "no file yet"
    assert "no tenant has a cap" in caplog.text
    write(tmp_path, entry("acme", ramShare=0.25, diskShare=0.75))
    assert file.refresh()
    assert file.shares == Shares(ram={ACME: 0.25}, disk={ACME: 0.75})
    assert not file.refresh()
    write(tmp_path, entry("acme", ramShare=3))
    assert not file.refresh()
    assert "tenants[0].ramShare" in caplog.text
    assert file.shares == Shares(ram={ACME: 0.25}, disk={ACME: 0.75})
    write(tmp_path, entry("acme"), entry("bolt", ramShare=0.5))
    assert file.refresh()
    assert file.shares == Shares(ram={BOLT: 0.5})
    assert "acme" not in caplog.text


def test_a_file_that_is_bad_from_the_start_means_no_cap_until_it_is_put_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_secret(tmp_path)
    write(tmp_path, entry("acme", ramShare=0))
    file = TenantSharesFile(tmp_path, tmp_path)
    for _ in range(3):
        assert not file.refresh()
    assert len(caplog.records) == 1, "said once"
    write(tmp_path, entry("acme", ramShare=0.1))
    assert file.refresh()


def test_shares_wait_for_a_secret_that_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, entry("acme", ramShare=0.1))
    file = TenantSharesFile(tmp_path, tmp_path)
    assert not file.refresh()
    write_secret(tmp_path)
    assert file.refresh()
    assert file.shares.ram == {ACME: 0.1}


def test_without_a_folder_nobody_has_a_cap(tmp_path: Path) -> None:
    assert not TenantSharesFile(None, tmp_path).refresh()


def store_as(client: TierClient, tag: int, seed: int, num_blocks: int = 4) -> None:
    """Store one short chain in a tenant's name."""
    addresses = chain(num_blocks, seed=seed)
    parents = [ROOT, *addresses]
    blocks = [BlockRecord(address, parents[i], i, BLOCK_TOKENS, tag) for i, address in enumerate(addresses)]

    def source(index: int, view: memoryview) -> None:
        view[:] = payload(addresses[index], len(view))

    client.store(blocks, source, 5.0)


def sealed(sidecar: SidecarProcess) -> float:
    return sidecar.metric('pagoda_tier_blocks{state="sealed",tier="ram"}')


def test_a_real_sidecar_holds_a_tenant_to_its_share_and_learns_of_a_new_one_live() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    sidecar = SidecarProcess(folder)
    sidecar.flags["--tenants-dir"] = folder / "secret"
    write_secret(folder / "secret")
    write(folder / "secret", entry("acme", ramShare=0.1), entry("bolt"))
    try:
        sidecar.start()
        with client_of(sidecar) as client:
            wait_until(lambda: sidecar.metric('pagoda_tier_blocks{state="free",tier="ram"}') > 0)
            num_slots = sidecar.metric('pagoda_tier_blocks{state="free",tier="ram"}')
            for seed in range(int(num_slots) // 4 + 8):
                store_as(client, ACME, seed)
            wait_until(lambda: sidecar.metric('pagoda_tier_evictions_total{tier="ram"}') > 0)
            time.sleep(2 * LOOK_AGAIN_SECONDS)  # the count of blocks is as old as that at most
            assert 0.05 * num_slots < sealed(sidecar) <= 0.1 * num_slots
            write(folder / "secret", entry("acme", ramShare=0.5), entry("bolt"))

            def grows() -> bool:
                store_as(client, ACME, next(seeds))
                return sealed(sidecar) > 0.2 * num_slots

            seeds = iter(range(1000, 100_000))
            wait_until(grows, what="the new share")
    finally:
        sidecar.end()
        shutil.rmtree(folder)
