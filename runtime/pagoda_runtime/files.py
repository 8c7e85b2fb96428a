"""Keys and settings that live in files: read once or followed while the program runs.

A mounted Secret or ConfigMap is replaced as a whole by renaming a link, so a file is known to have changed by its
identity, size and time, and is always read in one piece (`watch`).
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Generic, TypeVar

from pagoda_protocol import tenants
from pagoda_runtime.watch import Identity, Look, Watch, read_regular

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")

POLL_SECONDS = 0.5
_ABSENT = "there is no such file"


class KeyFileError(Exception):
    """A key file is missing, too short, or does not derive; the message names the file and what it should hold."""


def read_digest_key(folder: Path) -> bytes:
    """Read the digest key from a mounted pool secret (a router sees this one alone).

    Raises:
        KeyFileError: it is missing or not 32 bytes.
    """
    return _read_key(folder / tenants.DIGEST_SECRET_KEY)


def read_pool_secret(folder: Path) -> tuple[bytes, bytes]:
    """Read `(pool secret, digest key)` and check that the second derives from the first.

    Raises:
        KeyFileError: a file is missing, has the wrong length, or they do not belong together.
    """
    secret = _read_key(folder / tenants.POOL_SECRET_KEY)
    digest = read_digest_key(folder)
    if not hmac.compare_digest(tenants.digest_secret(secret), digest):
        raise KeyFileError(f"{folder / tenants.DIGEST_SECRET_KEY}: is not HMAC-SHA256(pool, 'digest'); make both anew")
    return secret, digest


def _read_key(path: Path) -> bytes:
    try:
        _, key = read_regular(path)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(key) != tenants.POOL_SECRET_BYTES:
        raise KeyFileError(f"{path}: expected {tenants.POOL_SECRET_BYTES} random bytes, found {len(key)}")
    return key


class LiveFile(Generic[_Value]):
    """The parsed content of a file, kept up to date. A bad new version is logged and the last good one kept."""

    def __init__(self, path: Path, parse: Callable[[str], _Value], absent: _Value | None = None) -> None:
        """Read the file once. `absent` is the value until there is a file; None: there must be one.

        Raises:
            OSError: it cannot be read.
            ValueError: `parse` refuses it.
        """
        self.path = path
        self._parse = parse
        self._watch = Watch(path)
        self._identity: Identity | None = None
        self._said: object = None  # the last problem that was logged, and with which version
        look = self._watch.look_now(None)
        if look.content is not None:
            self._identity, self._value = look.identity, parse(look.content.decode("utf-8"))
        elif absent is not None and isinstance(look.problem, FileNotFoundError):
            self._value, self._said = absent, (None, _ABSENT)
        else:
            assert look.problem is not None, "a version that is not known has content"
            raise look.problem

    @property
    def value(self) -> _Value:
        """The newest version that could be parsed."""
        return self._value

    def refresh(self) -> bool:
        """Read the file again if it changed; return whether the value is a new one.

        A mount that hangs is waited for once, for `watch.READ_SECONDS`.
        """
        return self._take(self._watch.look_now(self._identity))

    @contextlib.asynccontextmanager
    async def following(self, on_change: Callable[[_Value], None] | None = None) -> AsyncIterator[None]:
        """Follow the file while the context is open, calling `on_change` with each new value."""
        task = asyncio.create_task(self._follow(on_change))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, on_change: Callable[[_Value], None] | None) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if self._take(await self._watch.look(self._identity)) and on_change is not None:
                    on_change(self._value)
            except Exception:  # noqa: BLE001 - the task's outermost loop: one version that fails must not be the last
                _log.exception("%s: new version not used", self.path)

    def _take(self, look: Look) -> bool:
        """Use what was seen; return whether the value is a new one."""
        if look.problem is not None:
            self._say(_ABSENT if isinstance(look.problem, FileNotFoundError) else str(look.problem))
        if look.content is None:
            return False
        self._identity = look.identity
        try:
            value = self._parse(look.content.decode("utf-8"))
        except ValueError as error:
            self._say(str(error))
            return False
        self._said = None
        changed = value != self._value
        self._value = value
        return changed

    def _say(self, problem: str) -> None:
        """Log a problem once for each version of the file, however often it is met."""
        if (self._identity, problem) != self._said:
            _log.warning("%s: new version not used: %s", self.path, problem)
        self._said = (self._identity, problem)
