"""The pool's certificates and credentials followed live: what is rotated is used for new connections.

Mounted folders are replaced file by file or as a whole. A bad version is logged and the last good one kept; before
there was a good one the pool is off, with a reason that names the file.
"""

import logging
from pathlib import Path

from pagoda_sidecar.pool import AccessError, access_files, read_access
from pagoda_sidecar.pool_thread import PoolThread

_log = logging.getLogger(__name__)

_Identity = tuple[int, int, int, int] | None


class PoolAccessFiles:
    """Keeps a pool's access as the folders have it; a folder that is None is not wanted."""

    def __init__(self, tls_dir: Path | None, auth_dir: Path | None, pool: PoolThread) -> None:
        self._tls_dir = tls_dir
        self._auth_dir = auth_dir
        self._pool = pool
        self._identities: list[_Identity] | None = None
        self._was_good = False

    def refresh(self) -> bool:
        """Read the files if one changed; return whether the pool's access or its reason to be off did."""
        identities = [_identify(path) for path in access_files(self._tls_dir, self._auth_dir)]
        if identities == self._identities:
            return False
        self._identities = identities
        try:
            access = read_access(self._tls_dir, self._auth_dir)
        except AccessError as error:
            if self._was_good:
                _log.warning("new version not used: %s", error)
                return False
            _log.warning("pool tier off: %s", error)
            self._pool.set_problem(str(error))
            return True
        self._was_good = True
        self._pool.set_access(access)
        if identities:
            _log.info("pool certificates and credentials read")
        return True


def _identify(path: Path) -> _Identity:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
