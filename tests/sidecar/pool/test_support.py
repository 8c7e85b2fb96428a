"""The real memcached of the tests itself: colleagues rely on its faults being the real ones."""

import os
import socket

import pytest

from tests.support.memcached import needs_memcached, running_memcached

pytestmark = needs_memcached


def test_it_answers_stops_resumes_restarts_empty_and_is_gone_afterwards() -> None:
    with running_memcached() as node:
        assert node.command(b"ms key 2\r\nab\r\n") == b"HD\r\n"
        node.stop()
        with pytest.raises(TimeoutError):
            node.command(b"mg key v\r\n", timeout=0.1)
        node.resume()
        assert node.command(b"mg key v\r\n").startswith(b"VA 2")
        port = node.port
        node.restart()
        assert node.port == port
        assert node.command(b"mg key v\r\n") == b"EN\r\n"
        node.move()
        assert node.port != port
        pid = node.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", node.port), timeout=1):
        pass


def test_a_stopped_process_is_ended_too() -> None:
    with running_memcached(item_limit="1m") as node:
        assert node.statistics("settings")["item_size_max"] == str(1 << 20)
        node.stop()
        pid = node.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
