"""run.json: what a run tells scripts. Replaced in one piece at each change, gone when the run has ended.

{"pool": "chat", "model": "…", "pid": 1, "ready": true, "url": "http://127.0.0.1:8000/v1",
 "parts": [{"kind": "engine", "name": "chat-0", "state": "ready", "pid": 2, "port": 3, "starts": 1}]}
"""

import json
import os
from pathlib import Path
from typing import Any

from pagoda_cli.keeper import Keeper, State
from pagoda_cli.plan import Kind
from pagoda_cli.state import write_private
from pagoda_cli.supervise import Supervisor


def router_url(supervisor: Supervisor, host: str) -> str:
    """Return what clients take for OpenAI's base URL."""
    router = next(part for part in supervisor.plan.parts if part.kind is Kind.ROUTER)
    return f"http://{host}:{router.port}/v1"


def write_record(path: Path, supervisor: Supervisor, host: str) -> None:
    """Write the state of all parts to `path`."""
    record = {
        "pool": supervisor.plan.pool_name,
        "model": supervisor.plan.model_name,
        "pid": os.getpid(),
        "ready": supervisor.is_ready,
        "url": router_url(supervisor, host),
        "parts": [_entry(keeper) for keeper in supervisor.keepers],
    }
    write_private(path, (json.dumps(record, indent=1) + "\n").encode())


def _entry(keeper: Keeper) -> dict[str, Any]:
    is_running = keeper.state in (State.STARTING, State.READY) and keeper.process is not None
    return {
        "kind": keeper.part.kind.value,
        "name": keeper.part.name,
        "state": keeper.state.value,
        "pid": keeper.process.pid if is_running and keeper.process is not None else None,
        "port": keeper.part.port,
        "starts": keeper.num_starts,
    }
