"""What the pool is told by files, followed live, and the pool made from it."""

import logging
from pathlib import Path

from pagoda_runtime.files import LiveFile
from pagoda_runtime.metrics import Instrument, Metrics
from pagoda_sidecar.pool import PoolNode, parse_nodes
from pagoda_sidecar.pool_access import PoolAccessFiles
from pagoda_sidecar.pool_thread import PoolThread

_log = logging.getLogger(__name__)

NODES_FILE = "pool-nodes.json"


class PoolNodesFile:
    """Keeps a pool's nodes as the file has them. A file that is not there yet, or bad, means no nodes."""

    def __init__(self, path: Path, pool: PoolThread) -> None:
        self._path = path
        self._pool = pool
        self._file: LiveFile[tuple[PoolNode, ...]] | None = None
        self._problem = ""

    def refresh(self) -> bool:
        """Read the file if it changed; return whether the pool's nodes did."""
        changed = self._open() if self._file is None else self._file.refresh()
        if changed and self._file is not None:
            self._pool.set_nodes(self._file.value)
            _log.info("pool nodes: %s", ", ".join(node.name for node in self._file.value) or "none")
        return changed

    def _open(self) -> bool:
        try:
            self._file = LiveFile(self._path, parse_nodes)
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("pool tier off: %s", error)
            return False
        return True


class PoolFiles:
    """All files that the pool follows."""

    def __init__(self, nodes: PoolNodesFile, access: PoolAccessFiles) -> None:
        self._nodes = nodes
        self._access = access

    def refresh(self) -> bool:
        """Read what changed; return whether an engine must hear of it."""
        has_access_changed = self._access.refresh()
        return self._nodes.refresh() or has_access_changed


def make_pool(
    settings_dir: Path,
    metrics: Metrics,
    integrity_failures: Instrument,
    tls_dir: Path | None = None,
    auth_dir: Path | None = None,
) -> tuple[PoolThread, PoolFiles]:
    """Return the pool with the nodes, certificates and credentials of now, and the files to follow."""
    pool = PoolThread(metrics, integrity_failures=integrity_failures)
    files = PoolFiles(PoolNodesFile(settings_dir / NODES_FILE, pool), PoolAccessFiles(tls_dir, auth_dir, pool))
    files.refresh()
    return pool, files
