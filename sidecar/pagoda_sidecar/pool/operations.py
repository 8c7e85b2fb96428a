"""What became of the operations on each node: `pagoda_pool_operations_total`, for as long as somebody knows the node.

Two sets of connections lead to a node, in two threads; when a list changes its old and its new place are known side by
side for a moment. The series of a name leave with the last place that bears it; what ends there later is not counted.
"""

import threading

from pagoda_runtime.metrics import Instrument


class NodeOperations:
    """Thread-safe. The only writer of its counter."""

    def __init__(self, counter: Instrument) -> None:
        """`counter` has the labels `node`, `operation` and `outcome`."""
        self._counter = counter
        self._lock = threading.Lock()
        self._places: dict[str, set[object]] = {}
        self._counted: dict[str, set[tuple[str, str]]] = {}  # (operation, outcome)

    def join(self, node: str, who: object) -> None:
        """Count what happens to `node` while `who` has it."""
        with self._lock:
            self._places.setdefault(node, set()).add(who)

    def leave(self, node: str, who: object) -> None:
        """Forget what was counted of `node` unless somebody else has it."""
        with self._lock:
            places = self._places.get(node, set())
            places.discard(who)
            if not places:
                self._places.pop(node, None)
                for operation, outcome in self._counted.pop(node, ()):
                    self._counter.remove(node=node, operation=operation, outcome=outcome)

    def count(self, node: str, operation: str, outcome: str, amount: int = 1) -> None:
        """Count what became of `amount` operations on `node`, if anybody has it."""
        with self._lock:
            if node in self._places:
                self._counted.setdefault(node, set()).add((operation, outcome))
                self._counter.add(amount, node=node, operation=operation, outcome=outcome)
