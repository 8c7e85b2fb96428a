"""A sidecar or its engine killed, hung or ended, with a real client: what survives, what is lost, and how quietly."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagoda_sidecar.client import SETTLE_SECONDS, DigestRow, TierClient, TierUnavailable
from pagoda_sidecar.client_connection import PATIENT_SECONDS
from tests.sidecar.support import (
    ROOT,
    SidecarProcess,
    chain,
    client_of,
    identity,
    load,
    memcached,
    payload,
    records,
    sidecar_process,
    store,
    usable,
    wait_until,
)


@pytest.mark.parametrize("who", ["worker", "supervisor"])
def test_ram_survives_a_kill_and_the_engine_attaches_again(sidecar: SidecarProcess, who: str) -> None:  # E24
    addresses = chain(12)
    with client_of(sidecar) as client:
        attaches: list[float] = []
        client.on_attach = lambda: attaches.append(time.monotonic())
        store(client, addresses)
        if who == "worker":
            sidecar.kill_worker()
        else:
            sidecar.kill_supervisor()
            sidecar.start()
        wait_until(lambda: attaches and usable(client))
        assert load(client, addresses).sources == ["ram"] * 12
        if who == "worker":
            assert sidecar.metric("pagoda_worker_restarts_total") >= 1


def test_kills_at_random_points_under_load_lose_nothing_but_time(sidecar: SidecarProcess) -> None:  # E24
    with client_of(sidecar) as client:
        for round_number in range(2):
            end = time.monotonic() + 0.05 + 0.1 * round_number
            seed = 0
            worker = sidecar.worker
            while usable(client) or seed == 0:
                addresses = chain(6, seed)
                seed += 1
                try:
                    store(client, addresses, 1.0)
                    load(client, addresses, seconds=1.0)  # checks the bytes
                except TierUnavailable:
                    break
                if time.monotonic() > end:
                    os.kill(worker, signal.SIGKILL)
                    end = time.monotonic() + 60
            wait_until(lambda: usable(client))
        addresses = chain(6, 999)
        assert store(client, addresses).stored == 6
        assert load(client, addresses).reason is None
        wait_until(lambda: sidecar.metric("pagoda_quarantined_slots") == 0)


def test_e4_a_sidecar_killed_in_the_middle_of_a_load_leaves_a_verified_prefix(sidecar: SidecarProcess) -> None:
    addresses = chain(8)
    with client_of(sidecar) as client:
        store(client, addresses)
        worker = sidecar.worker
        got: list[bytes] = []

        def sink(position: int, view: memoryview) -> None:
            got.append(bytes(view))
            if position == 2:
                os.kill(worker, signal.SIGKILL)

        result = client.load(ROOT, addresses, 0, 8, sink, 5.0, lambda: False)
        assert 3 <= len(result.sources) <= 8
        assert got[: len(result.sources)] == [payload(address) for address in addresses[: len(result.sources)]]
        wait_until(lambda: not client.attached)
        wait_until(lambda: usable(client))
        assert load(client, addresses).reason is None


def test_a_hung_sidecar_costs_one_deadline_once_and_is_used_again_when_it_answers(sidecar: SidecarProcess) -> None:
    addresses = chain(6)
    with client_of(sidecar) as client:
        store(client, addresses)
        attaches: list[float] = []
        client.on_attach = lambda: attaches.append(time.monotonic())
        worker = sidecar.worker
        os.kill(worker, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(TierUnavailable) as hung:
            load(client, addresses, seconds=PATIENT_SECONDS)
        assert hung.value.reason == "deadline"
        assert PATIENT_SECONDS <= time.monotonic() - started < 2 * PATIENT_SECONDS
        started = time.monotonic()
        for _ in range(20):
            with pytest.raises(TierUnavailable) as fast:
                store(client, addresses, seconds=5.0)
            assert fast.value.reason == "breaker"
        assert time.monotonic() - started < 3.0, "one of them has waited"
        assert not client.attached
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: usable(client))
        assert load(client, addresses).sources == ["ram"] * 6
        assert sidecar.worker == worker
        assert attaches == [], "the same attachment goes on"
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0, what="the lease of the load nobody saw granted")


def test_an_impatient_call_costs_no_more_than_its_deadline_and_has_a_hung_sidecar_found_out(
    sidecar: SidecarProcess,
) -> None:
    addresses = chain(6)
    with client_of(sidecar) as client:
        store(client, addresses)
        worker = sidecar.worker
        os.kill(worker, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(TierUnavailable) as hung:
            load(client, addresses, seconds=0.05)
        assert time.monotonic() - started < SETTLE_SECONDS, "it waited for its settlement as well"
        assert hung.value.reason == "deadline"
        wait_until(lambda: not client.attached, 5)
        started = time.monotonic()
        for _ in range(20):
            with pytest.raises(TierUnavailable) as fast:
                store(client, addresses, seconds=5.0)
            assert fast.value.reason == "breaker"
        assert time.monotonic() - started < 3.0, "one of them has waited"
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: usable(client))
        assert load(client, addresses).sources == ["ram"] * 6
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0, what="the lease of the load nobody saw granted")


def test_a_reserve_whose_answer_was_lost_is_settled_when_the_sidecar_answers_again(sidecar: SidecarProcess) -> None:
    with client_of(sidecar) as client:
        store(client, chain(1))
        worker = sidecar.worker
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(TierUnavailable):
            store(client, chain(8, 5), seconds=0.2)
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: usable(client))
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)
        assert store(client, chain(8, 5)).stored == 8


def test_a_dead_engine_voids_its_hints_at_once_and_leaves_its_blocks_to_the_pool() -> None:
    addresses = chain(8)
    device_only = chain(9)[-1]
    with memcached() as port, sidecar_process(nodes=[("mc-0", port)]) as sidecar:
        engine = subprocess.Popen([sys.executable, "-m", __name__, str(sidecar.volume)], stdout=subprocess.PIPE)
        assert engine.stdout is not None
        with engine.stdout:
            assert engine.stdout.readline() == b"holding slots\n"
            wait_until(lambda: len(sidecar.hint_rows()) == 2)
            assert set(sidecar.hint_rows().values()) == {(32, "device"), (36, "device")}
            engine.kill()
            engine.wait()
        wait_until(lambda: sidecar.hint_rows() == {(b"d" * 16).hex(): (32, "ram")}, what=device_only.hex())
        wait_until(lambda: sidecar.metric("pagoda_quarantined_slots") == 3)
        stored = 'pagoda_pool_operations_total{node="mc-0",operation="store",outcome="stored"}'
        wait_until(lambda: sidecar.metric(stored) == 8, what="blocks pushed")
        with client_of(sidecar) as client:  # another process id: its predecessor's slots are free
            wait_until(lambda: sidecar.metric("pagoda_quarantined_slots") == 0)
            assert load(client, addresses).sources == ["ram"] * 8


def test_hints_follow_the_engine_and_survive_a_restart(sidecar: SidecarProcess) -> None:
    addresses = chain(4, seed=500)
    digest = (b"d" * 16).hex()
    with client_of(sidecar) as client:
        store(client, addresses)
        client.report([DigestRow(b"d" * 16, 16, addresses[-1])], [addresses[-1]], [], [addresses[-1]], None, 1.0)
        wait_until(lambda: sidecar.hint_rows() == {digest: (16, "device")})
        client.report([], [], [addresses[-1]], [], None, 1.0)
        wait_until(lambda: sidecar.hint_rows() == {digest: (16, "ram")})
        sidecar.kill_worker()
        wait_until(lambda: not client.attached)
        wait_until(lambda: usable(client))
        wait_until(lambda: sidecar.hint_rows() == {digest: (16, "ram")})


def test_term_ends_both_processes_and_keeps_the_arena(sidecar: SidecarProcess) -> None:
    with client_of(sidecar) as client:
        store(client, chain(2))
        worker = Path(f"/proc/{sidecar.worker}")
        assert sidecar.stop() == 0
        assert not worker.exists()
        wait_until(lambda: not client.attached)
        with pytest.raises(TierUnavailable):
            store(client, chain(2))
        sidecar.start()
        wait_until(lambda: usable(client))
        assert load(client, chain(2)).sources == ["ram"] * 2


def be_an_engine(volume: Path) -> None:
    """Store eight blocks, report them, and then hang in the middle of another store until killed."""
    client = TierClient(volume, identity())
    wait_until(lambda: usable(client))
    store(client, chain(8))
    rows = [DigestRow(b"d" * 16, 32, chain(8)[-1]), DigestRow(b"e" * 16, 36, chain(9)[-1])]
    client.report(rows, chain(9), [], [], None, 1.0)

    def source(index: int, view: memoryview) -> None:
        sys.stdout.write("holding slots\n")
        sys.stdout.flush()
        time.sleep(60)

    client.store(records(chain(3, 77)), source, 60.0)


if __name__ == "__main__":
    be_an_engine(Path(sys.argv[1]))
