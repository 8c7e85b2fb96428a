"""How each pool is, as metrics: what alerts go by. Set by whoever leads; a standby shows nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics

_VALUES = {"True": 1, "False": 0}
_UNKNOWN = -1


class PoolGauges:
    """The conditions of every pool that was reconciled and is still there."""

    def __init__(self, metrics: Metrics) -> None:
        self._conditions = metrics.gauge(
            names.POOL_CONDITION, "A pool's condition: 1 true, 0 false, -1 unknown.", ("namespace", "pool", "type")
        )
        self._shown: dict[tuple[str, str], set[str]] = {}

    def show(self, namespace: str, pool: str, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Show a pool's conditions, and no others of it."""
        values = {str(entry["type"]): _VALUES.get(entry["status"], _UNKNOWN) for entry in conditions}
        for kind in self._shown.get((namespace, pool), set()) - values.keys():
            self._conditions.remove(namespace=namespace, pool=pool, type=kind)
        for kind, value in values.items():
            self._conditions.set(value, namespace=namespace, pool=pool, type=kind)
        self._shown[namespace, pool] = set(values)

    def forget(self, namespace: str, pool: str) -> None:
        """Show nothing of a pool that is gone."""
        self.show(namespace, pool, ())
        del self._shown[namespace, pool]
