"""How much of each tier a tenant may fill: the shares of `tenants.json`, by the tag that stands for it in records.

Rules: names stay in the file, tags are all that leaves here; a file that is not there yet, or bad from the start,
means that nobody has a cap; a bad new version keeps the last good one and says so.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagoda_protocol.tenants import TENANTS_KEY, Tenants, parse_tenants, tenant_tag
from pagoda_runtime.files import KeyFileError, LiveFile, read_pool_secret
from pagoda_runtime.logs import fields

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shares:
    """For each tier tenant tag → share, above 0 and below 1. A tag not named has no cap."""

    ram: Mapping[int, float] = field(default_factory=dict)
    disk: Mapping[int, float] = field(default_factory=dict)


class TenantSharesFile:
    """Follows the tenants file. Belongs to the control loop; reads one small file at a time."""

    def __init__(self, tenants_dir: Path | None, secret_dir: Path) -> None:
        """Without `tenants_dir` nobody ever has a cap."""
        self.shares = Shares()
        self._path = None if tenants_dir is None else tenants_dir / TENANTS_KEY
        self._secret_dir = secret_dir
        self._file: LiveFile[Tenants] | None = None
        self._is_applied = False
        self._problem = ""

    def refresh(self) -> bool:
        """Read the file if it changed; return whether `shares` did."""
        if self._path is None:
            return False
        if self._file is None:
            self._open(self._path)
        elif self._file.refresh():
            self._is_applied = False
        return self._file is not None and not self._is_applied and self._apply(self._file.value)

    def _open(self, path: Path) -> None:
        try:
            self._file = LiveFile(path, parse_tenants)
        except (OSError, ValueError) as error:
            self._say(f"{path}: {error}")

    def _apply(self, tenants: Tenants) -> bool:
        try:
            secret, _ = read_pool_secret(self._secret_dir)
        except KeyFileError as error:  # until it is put right all tiers are off
            self._say(str(error))
            return False
        self._is_applied = True
        shares = shares_by_tag(secret, tenants)
        if shares == self.shares:
            return False
        self.shares = shares
        _log.info("tenant shares %s", fields(num_ram=len(shares.ram), num_disk=len(shares.disk)))
        return True

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("no tenant has a cap: %s", problem)
        self._problem = problem


def shares_by_tag(pool_secret: bytes, tenants: Tenants) -> Shares:
    """Return the caps of all tenants that have one."""
    tagged = [(tenant_tag(pool_secret, scope), shares) for scope, shares in tenants.shares.items()]
    return Shares(
        ram={tag: shares.ram for tag, shares in tagged if shares.ram < 1},
        disk={tag: shares.disk for tag, shares in tagged if shares.disk < 1},
    )
