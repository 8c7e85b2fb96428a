"""`pagoda up`: read the manifest, check it against this machine, plan, run until asked to stop.

Everything that can be refused is refused before anything is started, in one answer where that is possible.
"""

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pagoda_cli.disks import disk_problem, remove_unused
from pagoda_cli.keys import prepare_secrets, secret_name, secret_problems
from pagoda_cli.machine import SHARED_MEMORY, Machine, free_bytes, read_machine
from pagoda_cli.manifest import read_manifest
from pagoda_cli.memory import arena_bytes, memory_problems
from pagoda_cli.plan import Place, Plan, PodPorts, make_plan, num_managed_nodes
from pagoda_cli.ports import LOOPBACK, NoPortError, free_ports, is_forbidden, is_free
from pagoda_cli.problems import RefusedError, UpError
from pagoda_cli.state import StateFolder, default_state, locked, private_folder, run_folder, write_settings
from pagoda_cli.volumes import remove_leftovers, room_problem, socket_problem, temporary_folder, volume_folder
from pagoda_cli.weights import missing_weights
from pagoda_protocol.pool.spec import ExternalPool, InferencePool, ManagedPool


@dataclass(frozen=True)
class Request:
    """The command line of `pagoda up`."""

    manifest: Path
    port: int
    """The router's; 0: a free one."""
    exact: bool
    state: Path | None


def up(request: Request) -> int:
    """Run a pool until asked to stop; return the exit status."""
    try:
        if sys.platform != "linux":
            raise RefusedError([f"pagoda up needs Linux, and this is {sys.platform}; run it in a Linux container"])
        pool, unused = read_manifest(request.manifest)
        state = StateFolder(Path(os.path.abspath(request.state or default_state(pool.name))))
        with locked(state) as lock:
            remove_leftovers((SHARED_MEMORY, temporary_folder()))
            machine = read_machine()
            base = _volume_base(pool, machine)
            _refuse(_problems(pool, request, state, machine, base))
            with run_folder(state), volume_folder(base) as volumes:
                prepare_secrets(pool, state)
                plan = make_plan(pool, _place(pool, request, state, machine, volumes))
                remove_unused(pool.name, state.disks, plan.disks)
                for disk in plan.disks:
                    private_folder(Path(disk))
                return _serve(plan, pool, state, lock, volumes, [*unused, *_notes(pool, machine, base)])
    except UpError as error:
        for line in error.lines:
            print(f"pagoda up: {line}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"pagoda up: {error.filename or 'operating system'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _problems(pool: InferencePool, request: Request, state: StateFolder, machine: Machine, base: Path) -> Iterator[str]:
    weights = missing_weights(pool.model)
    if weights is not None:
        yield weights
    yield from memory_problems(pool, machine)
    yield from secret_problems(pool, state)
    if request.port and is_forbidden(request.port):
        yield f"--port: {request.port} is not yours to listen on; give one from 1024 on, or 0 for a free one"
    elif request.port and not is_free(request.port):
        yield f"--port: {request.port} is taken by another program; give another one, or 0 for a free one"
    for problem in (
        room_problem(base, free_bytes(base), arena_bytes(pool)),
        disk_problem(pool, state.disks),
        socket_problem(base, f"{pool.name}-{pool.replicas - 1}"),
    ):
        if problem is not None:
            yield problem


def _refuse(problems: Iterator[str]) -> None:
    lines = list(problems)
    if lines:
        raise RefusedError(lines)


def _volume_base(pool: InferencePool, machine: Machine) -> Path:
    return SHARED_MEMORY if arena_bytes(pool) <= machine.shared_memory_bytes else temporary_folder()


def _place(pool: InferencePool, request: Request, state: StateFolder, machine: Machine, volumes: Path) -> Place:
    num_nodes = num_managed_nodes(pool, machine.memcached is not None)
    try:
        ports = free_ports(2 * pool.replicas + num_nodes + 1, frozenset({request.port}))
    except NoPortError as error:
        raise RefusedError([f"spec.replicas: {error}; lower it"]) from error
    api_keys = pool.tenancy.api_keys_secret_name
    for index in range(pool.replicas):
        (volumes / f"{pool.name}-{index}").mkdir(mode=0o700)
    return Place(
        host=LOOPBACK,
        router_port=request.port or ports.pop(),
        pod_ports=[PodPorts(ports.pop(), ports.pop()) for _ in range(pool.replicas)],
        node_ports=[ports.pop() for _ in range(num_nodes)],
        volumes=str(volumes),
        secret_dir=str(state.secret(secret_name(pool))),
        router_secret_dir=str(state.router_secret),
        settings_dir=str(state.settings),
        tenants_dir=None if api_keys is None else str(state.secret(api_keys)),
        pool_tls_dir=_external_secret(pool, state, lambda external: external.tls_secret_name),
        pool_auth_dir=_external_secret(pool, state, lambda external: external.auth_secret_name),
        disks=str(state.disks),
        num_cores=machine.num_cores,
        memcached=machine.memcached or "memcached",
        python=sys.executable,
        exact=request.exact,
    )


def _external_secret(
    pool: InferencePool, state: StateFolder, name_of: Callable[[ExternalPool], str | None]
) -> str | None:
    external = pool.cache.pool
    name = name_of(external) if isinstance(external, ExternalPool) else None
    return None if name is None else str(state.secret(name))


def _notes(pool: InferencePool, machine: Machine, base: Path) -> list[str]:
    """Return what the user should know before the first part starts, a line each."""
    notes = []
    if isinstance(pool.cache.pool, ManagedPool) and machine.memcached is None:
        notes.append("spec.cache.pool.managed: memcached is not installed, so pods share nothing: the pool tier is off")
    if base != SHARED_MEMORY:
        notes.append(
            f"spec.cache.ram.size: {SHARED_MEMORY} has no room for the RAM tiers; they go to {base}, which is slower"
        )
    if pool.replicas > machine.num_cores:
        notes.append(f"spec.replicas: {pool.replicas} engines share {machine.num_cores} cores, and will be slow")
    return notes


def _serve(plan: Plan, pool: InferencePool, state: StateFolder, lock: int, volumes: Path, notes: list[str]) -> int:
    from pagoda_cli.display import open_display
    from pagoda_cli.guarding import guarded
    from pagoda_cli.record import router_url, write_record
    from pagoda_cli.supervise import Supervisor, stop_on_signals

    async def serve() -> int:
        with (
            stop_on_signals() as stop,
            open_display() as display,
            guarded((volumes, state.run, state.run_file), lock) as guard,
        ):
            for note in notes:
                display.say(note)

            def record(changed: Supervisor) -> None:
                try:
                    write_record(state.run_file, changed, LOOPBACK)
                except OSError as error:  # a full disk stops scripts that wait for the file, not the pool
                    display.say(f"{state.run_file}: {error.strerror}")

            supervisor = Supervisor(plan, LOOPBACK, guard, display, record)

            def announce() -> None:
                url = router_url(supervisor, LOOPBACK)
                display.say(f"pool {pool.name} is up at {url}; Ctrl-C stops it. Try:")
                display.say(curl(url, pool))

            await supervisor.run(stop, announce)
            display.say("stopped")
            return 128 + stop.signal_number if stop.at_once.is_set() else 0

    write_settings(state, plan.settings)
    return asyncio.run(serve())


def curl(url: str, pool: InferencePool) -> str:
    """Return a command that asks the pool something."""
    message = '{"role": "user", "content": "What is a pagoda?"}'
    body = f'{{"model": "{pool.model.name}", "max_tokens": 64, "messages": [{message}]}}'
    key = ' -H "Authorization: Bearer $API_KEY"' if pool.tenancy.api_keys_secret_name is not None else ""
    return f"curl {url}/chat/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"
