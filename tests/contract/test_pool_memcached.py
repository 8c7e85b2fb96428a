"""The real memcached takes our arguments and means by them what we mean."""

import contextlib
import shutil
import socket
import subprocess
import time

import pytest

from pagoda_protocol.pool.arguments import MemcachedPlacement, memcached_command
from pagoda_protocol.pool.spec import ManagedPool
from tests.support.ports import free_port

MEMCACHED = shutil.which("memcached")
MIB = 2**20


def connect(port, deadline):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "memcached did not listen"
            time.sleep(0.02)


@contextlib.contextmanager
def running(managed):
    port = free_port()
    process = subprocess.Popen(memcached_command(managed, MemcachedPlacement("127.0.0.1", port, MEMCACHED)).argv)
    try:
        with connect(port, time.monotonic() + 10) as connection, connection.makefile("rwb") as stream:
            yield stream
    finally:
        process.kill()
        process.wait()


def settings(stream):
    stream.write(b"stats settings\r\n")
    stream.flush()
    return dict(line.split()[1:3] for line in iter(stream.readline, b"END\r\n") if len(line.split()) == 3)


@pytest.mark.skipif(MEMCACHED is None, reason="memcached is not installed")
@pytest.mark.parametrize(("memory", "item"), [(64 * MIB, 32 * MIB), (100 * MIB + 1, 50 * MIB), (1024 * MIB, 128 * MIB)])
def test_memcached_starts_with_the_memory_and_the_item_limit_that_were_meant(memory, item):
    with running(ManagedPool(1, memory)) as stream:
        found = settings(stream)
        assert int(found[b"maxbytes"]) == memory // MIB * MIB
        assert int(found[b"item_size_max"]) == item
        assert (found[b"maxconns"], found[b"num_threads"]) == (b"1024", b"2")


@pytest.mark.skipif(MEMCACHED is None, reason="memcached is not installed")
def test_a_value_just_below_the_item_limit_is_stored():
    value = bytes(32 * MIB - 1024)
    with running(ManagedPool(1, 64 * MIB)) as stream:
        stream.write(b"ms key %d\r\n" % len(value) + value + b"\r\n")
        stream.flush()
        assert stream.readline() == b"HD\r\n"
