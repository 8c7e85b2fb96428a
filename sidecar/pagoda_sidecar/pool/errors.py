"""What can be wrong with a node. These never leave the pool: each becomes misses under its `outcome` label.

NodeError
├── NodeDown        breaker      it failed before and has not answered a ping since
├── NodeBusy        busy         our own bound on connections: nobody's fault
└── NodeFailed                   opens the breaker
    ├── NodeRefused refused      no connection
    ├── NodeUntrusted untrusted  no TLS: its certificate or ours was not accepted
    ├── NodeDenied  denied       it does not know our user and password, or asks for some and there are none
    ├── NodeLost    lost         the connection ended while an answer was owed
    ├── NodeLate    timeout      no answer within the deadline
    └── NodeGarbled garbage      an answer that is none, or to another question
"""

from typing import ClassVar


class NodeError(Exception):
    """An operation on a node did not happen; `outcome` is a metric label."""

    outcome: ClassVar[str] = "error"


class NodeDown(NodeError):
    """The node is left alone until it answers a ping."""

    outcome = "breaker"


class NodeBusy(NodeError):
    """All connections that this kind of operation may have are in use, for longer than it may wait."""

    outcome = "busy"


class NodeFailed(NodeError):
    """The node did something that a well node does not do."""


class NodeRefused(NodeFailed):
    """No connection could be made."""

    outcome = "refused"


class NodeUntrusted(NodeFailed):
    """The TLS handshake failed: one side does not accept the other's certificate, or speaks no TLS."""

    outcome = "untrusted"


class NodeDenied(NodeFailed):
    """The node wants other credentials than ours."""

    outcome = "denied"


class NodeLost(NodeFailed):
    """The connection ended in the middle of an exchange."""

    outcome = "lost"


class NodeLate(NodeFailed):
    """A deadline passed."""

    outcome = "timeout"


class NodeGarbled(NodeFailed):
    """The bytes are not what was asked for: the connection must not be used again."""

    outcome = "garbage"
