"""Whether a part is ready: one HTTP request, or one connection, with a deadline."""

import asyncio
import contextlib

PROBE_SECONDS = 2.0


async def is_ready(host: str, port: int, path: str | None, seconds: float = PROBE_SECONDS) -> bool:
    """Tell whether `GET path` answers 200 within `seconds`, or without a path whether the port can be connected to."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return path is None or await _status(reader, writer, host, port, path) == 200
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return False


async def _status(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, path: str
) -> int | None:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    words = (await reader.readline()).split()
    return int(words[1]) if len(words) >= 2 and words[0].startswith(b"HTTP/") and words[1].isdigit() else None
