import pytest

from pagoda_sidecar.pool import PoolNode, parse_nodes


def test_the_documented_example_is_read() -> None:
    nodes = parse_nodes('{"nodes": [{"name": "chat-memcached-0", "address": "127.0.0.1:41211"}]}')
    assert nodes == (PoolNode("chat-memcached-0", "127.0.0.1:41211"),)
    assert (nodes[0].host, nodes[0].port) == ("127.0.0.1", 41211)


def test_an_ipv6_address_keeps_its_colons() -> None:
    (node,) = parse_nodes('{"nodes": [{"name": "a", "address": "[::1]:11211"}]}')
    assert (node.host, node.port) == ("::1", 11211)


def test_no_nodes_are_legal() -> None:
    assert parse_nodes('{"nodes": []}') == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"pool-nodes\.json: not JSON"),
        ("[]", r"pool-nodes\.json: expected an object, got list"),
        ("{}", r"pool-nodes\.json\.nodes: missing"),
        ('{"nodes": {}}', "nodes: expected a list"),
        ('{"nodes": [], "more": 1}', r"pool-nodes\.json\.more: unknown field"),
        ('{"nodes": ["a:1"]}', r"nodes\[0\]: expected an object"),
        ('{"nodes": [{"name": "a"}]}', r"nodes\[0\]\.address: missing"),
        ('{"nodes": [{"name": "", "address": "a:1"}]}', r"nodes\[0\]\.name: expected a name"),
        ('{"nodes": [{"name": "\\ud800", "address": "a:1"}]}', r"nodes\[0\]\.name: expected a name"),
        ("[" * 100_000, r"pool-nodes\.json: not JSON"),
        ('{"nodes": [{"name": "a", "address": "a"}]}', r"nodes\[0\]\.address: expected host:port, got 'a'"),
        ('{"nodes": [{"name": "a", "address": ":1"}]}', r"nodes\[0\]\.address"),
        ('{"nodes": [{"name": "a", "address": "::1:1"}]}', r"nodes\[0\]\.address"),
        ('{"nodes": [{"name": "a", "address": "a:65536"}]}', r"nodes\[0\]\.address"),
        ('{"nodes": [{"name": "a", "address": "a:²"}]}', r"nodes\[0\]\.address"),
        ('{"nodes": [{"name": "a", "address": 5}]}', r"nodes\[0\]\.address"),
        ('{"nodes": [{"name": "a", "address": "a:1"}, {"name": "a", "address": "b:1"}]}', r"nodes\[1\]\.name.*twice"),
    ],
)
def test_a_bad_file_is_refused_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        parse_nodes(text)
