"""How the program ends."""

import subprocess
import sys

HANG_SECONDS = 60.0
STUBBORN = """
import asyncio, sys
from pagoda_operator import __main__ as program

async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def run(*_):
    program.task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    raise RuntimeError("a watch broke")

program.run = run
sys.exit(program.main())
"""
IMAGES = [f"--{part}-image=localhost/{part}:1" for part in ("engine", "sidecar", "router", "memcached")]


def test_a_program_whose_part_failed_ends_though_a_task_ignores_that_it_is_cancelled() -> None:
    arguments = ["--name=operator", "--lease-namespace=default", "--lease-name=pagoda", "--port=0", *IMAGES]
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN, *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "a watch broke" in done.stderr
