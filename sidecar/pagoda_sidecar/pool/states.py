"""Whether each node answers, by the words of all who talk to it: `pagoda_pool_node_up`, and when it came back.

Two sets of connections lead to a node, in two threads; when a list changes its old and its new place are known side by
side for a moment. Each says what it found and takes back only its own word. A node is up when nobody says otherwise.
"""

import threading
from collections.abc import Mapping

from pagoda_runtime.metrics import Instrument


class NodeStates:
    """Thread-safe. The only writer of its gauge."""

    def __init__(self, gauge: Instrument) -> None:
        """`gauge` has one label, `node`."""
        self._gauge = gauge
        self._lock = threading.Lock()
        self._words: dict[str, dict[object, str]] = {}  # by node and who: what is wrong, empty if nothing
        self._num_returns = 0

    @property
    def num_returns(self) -> int:
        """How often any node has come back: whoever comes back may have lost what he held."""
        return self._num_returns

    def say(self, node: str, who: object, problem: str = "") -> None:
        """Take `who`'s word for `node`, in place of the one before: what is wrong with it, empty if it is up."""
        with self._lock:
            words = self._words.setdefault(node, {})
            self._num_returns += not problem and bool(words.get(who))
            words[who] = problem
            self._show(node)

    def problems(self) -> Mapping[str, str]:
        """Return what is wrong with each node that anybody has asked, empty if nothing."""
        with self._lock:
            return {node: next(filter(None, words.values()), "") for node, words in self._words.items()}

    def take_back(self, node: str, who: object) -> None:
        """Forget what `who` said of `node`, if anything."""
        with self._lock:
            if self._words.get(node, {}).pop(who, None) is not None:
                self._show(node)

    def _show(self, node: str) -> None:
        words = self._words[node]
        if words:
            self._gauge.set(not any(words.values()), node=node)
        else:
            del self._words[node]
            self._gauge.remove(node=node)
