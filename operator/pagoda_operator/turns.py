"""Whose pods roll for the operator's own sake: after an upgrade of it, one pool at a time.

A pool that serves waits until the one before it is ready again and all its parts are complete, memcached too, whose new
nodes are empty though Ready does not ask for them. So an upgrade whose pods do not come up stops at the first pool.
What a user asks for waits for nobody, nor does a pool that is not ready: it may be just what it needs. A child that
cannot be written makes no such pool: a missing right or a broken webhook would else roll all pools at once.
"""

Key = tuple[str, str]  # namespace and name of a pool


class Turns:
    """One turn, held by at most one pool; known to one process alone."""

    def __init__(self) -> None:
        self.holder: Key | None = None

    def take(self, key: Key) -> bool:
        """Take the turn; False: another pool has it."""
        if self.holder is None:
            self.holder = key
        return self.holder == key

    def leave(self, key: Key) -> None:
        """Give the turn up, if `key` has it."""
        if self.holder == key:
            self.holder = None
