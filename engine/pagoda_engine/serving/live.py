"""The settings that change while the engine runs: `live.json` in the settings folder, followed."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pagoda_engine.serving.errors import StartError
from pagoda_protocol.live import LIVE_FILE, LiveSettings, parse_live
from pagoda_runtime.files import LiveFile


class Live:
    """The newest live settings; their defaults without a folder, and until there is a file in it."""

    def __init__(self, settings_dir: Path | None) -> None:
        """Read the file once, if there is one.

        Raises:
            StartError: it is not what it should be.
        """
        self._file: LiveFile[LiveSettings] | None = None
        try:
            if settings_dir is not None:
                self._file = LiveFile(settings_dir / LIVE_FILE, parse_live, absent=LiveSettings())
        except (OSError, ValueError) as error:
            raise StartError(str(error)) from error

    def settings(self) -> LiveSettings:
        """Return the newest version."""
        return LiveSettings() if self._file is None else self._file.value

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the file while the context is open."""
        if self._file is None:
            yield
            return
        async with self._file.following():
            yield
