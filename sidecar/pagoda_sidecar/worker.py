"""The sidecar's worker: everything but the supervision. Started by `supervisor`, as `python -m pagoda_sidecar.worker`.

Whatever is wrong with its settings keeps tiers off with a reason that Attach answers and the log names; the process
lives on and looks again.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import grpc.aio
from aiohttp import web

from pagoda_protocol.addresses import SELF_TEST_ADDRESS, self_test_address
from pagoda_protocol.tier import SOCKET_NAME
from pagoda_protocol.tier.tier_pb2_grpc import add_TierServicer_to_server
from pagoda_runtime import logs
from pagoda_runtime.files import KeyFileError, read_pool_secret
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import stop_on_signals
from pagoda_runtime.web import PortTakenError, add_common_routes, serving
from pagoda_sidecar import arguments, supervisor
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.door import inherited, say_serving
from pagoda_sidecar.hint_stream import add_hint_routes
from pagoda_sidecar.intake import SERVER_OPTIONS, Intake
from pagoda_sidecar.late_answers import late_answers_counted
from pagoda_sidecar.pool_settings import PoolFiles, make_pool
from pagoda_sidecar.service import TierService
from pagoda_sidecar.sidecar import Sidecar
from pagoda_sidecar.summary import add_state_routes
from pagoda_sidecar.tenant_shares import TenantSharesFile

_log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 0.5
GRACE_SECONDS = 1.0
# So long at most another thread keeps the interpreter from the control loop (Python's default is 5 ms)
SWITCH_SECONDS = 0.0002
# Net allocations, and rounds of the generation before. What goes in the index goes at once, it makes no cycles; looking
# through 65,000 blocks held a call for up to 150 ms, four times in 265,000 stores
COLLECT_AFTER = (700, 2, 1000)
_PR_SET_PDEATHSIG = 1


async def run(settings: arguments.Arguments) -> None:
    """Serve until told to stop.

    Raises:
        PortTakenError: the HTTP port is in use; the supervisor tries again.
        OSError: the volume cannot be used at all.
    """
    metrics = Metrics()
    counters = Counters(metrics)
    counters.restarts.add(int(os.environ.get(supervisor.RESTARTS_VARIABLE, "0")))
    pool, pool_files = make_pool(
        settings.settings_dir, metrics, counters.integrity_failures, settings.pool_tls_dir, settings.pool_auth_dir
    )
    disk = DiskTier(settings.disk_dir, settings.disk_bytes, Chains(), counters.disk_damage)
    sidecar = Sidecar(settings.volume, settings.ram_bytes, pool, counters, disk)
    sidecar.off_reason = _config_problem(settings)
    shares = TenantSharesFile(settings.tenants_dir, settings.secret_dir)
    if shares.refresh():
        sidecar.set_shares(shares.shares)
    app = web.Application()
    add_common_routes(app, metrics)
    add_hint_routes(app, sidecar.hints)
    add_state_routes(app, sidecar)
    with stop_on_signals() as stop:
        await sidecar.start()
        try:
            async with (
                _serving_tiers(settings, sidecar),
                serving(app, settings.host, settings.port, listener=inherited()) as port,
                _looking_again(settings, sidecar, pool_files, shares),
            ):
                say_serving()
                _log.info("sidecar ready %s", logs.fields(port=port, off=sidecar.off_reason or "no"))
                await stop.wait()
        finally:
            await sidecar.close()


@contextlib.asynccontextmanager
async def _serving_tiers(settings: arguments.Arguments, sidecar: Sidecar) -> AsyncIterator[None]:
    """Serve gRPC on the volume's socket, which only this user may open."""
    path = settings.volume / SOCKET_NAME
    if settings.volume.stat().st_uid == os.geteuid():  # else the platform owns it, and the socket has its own mode
        settings.volume.chmod(0o700)
    path.unlink(missing_ok=True)
    server = grpc.aio.server(interceptors=[Intake(sidecar.count_refusal)], options=SERVER_OPTIONS)
    add_TierServicer_to_server(TierService(sidecar), server)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    finally:
        os.umask(mask)
    path.chmod(0o600)
    try:
        with late_answers_counted(sidecar.count_refusal):
            yield
    finally:
        stopping = asyncio.create_task(server.stop(GRACE_SECONDS))  # takes no more calls from its first step on
        await asyncio.sleep(0)
        sidecar.detach_all()
        await stopping


@contextlib.asynccontextmanager
async def _looking_again(
    settings: arguments.Arguments, sidecar: Sidecar, pool_files: PoolFiles, shares: TenantSharesFile
) -> AsyncIterator[None]:
    """Keep gauges fresh, follow what the pool is told and what tenants may fill, and try bad settings again."""

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            try:
                look_once()
            except Exception:  # noqa: BLE001 - the task's outermost loop: what fails once is looked at again
                _log.exception("looking again at settings and gauges failed")

    def look_once() -> None:
        sidecar.update_gauges()
        sidecar.follow_pool()
        if pool_files.refresh():
            sidecar.tell_engine()
        if shares.refresh():
            sidecar.set_shares(shares.shares)
        if sidecar.off_reason:
            reason = _config_problem(settings)
            if reason != sidecar.off_reason:
                sidecar.set_off_reason(reason)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _config_problem(settings: arguments.Arguments) -> str:
    """Return why no tier may be used, empty when all is well."""
    if self_test_address() != SELF_TEST_ADDRESS:
        return "address self-test: this process hashes differently, nothing would ever hit"
    try:
        read_pool_secret(settings.secret_dir)
    except KeyFileError as error:
        return f"pool secret: {error}"
    return ""


def _die_with_supervisor() -> None:
    """Ask the kernel to kill us when the supervisor is killed; the arena survives that."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = os.environ.get(supervisor.SUPERVISOR_VARIABLE)
    if expected is not None and int(expected) != os.getppid():
        raise SystemExit("the supervisor is gone")


def main(argv: Sequence[str]) -> int:
    """Run the worker; the exit status is for the supervisor's log."""
    settings = arguments.parse(argv)
    logs.configure("sidecar", settings.name)
    _die_with_supervisor()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what was imported stays: looking through it again and again held the control loop for 30 ms
    gc.set_threshold(*COLLECT_AFTER)
    try:
        asyncio.run(run(settings))
    except (PortTakenError, OSError, RuntimeError) as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
