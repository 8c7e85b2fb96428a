"""Which fault comes next, and for how long: a sequence that follows from its seed alone.

    trouble begins ──after its seconds──► trouble ends        some at once, for different parts

What must have been done in a long run is in `names_of_all`: a kind of fault that never happened proves nothing.
"""

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.faults.universe import NUM_NAMESPACES
from tests.faults.world import World
from tests.support.faults.control import Kill
from tests.support.faults.disk_hooks import DISK_FAULTS
from tests.support.faults.hooks import KILL_POINTS, TORN_POINTS
from tests.support.faults.mutations import FIELDS, KINDS, RESIGNED_FIELDS, Fault

MAX_ARMED = 24
HEAVY_SECONDS = 9.0
SELDOM = ("attached", "lapse", "land", "free")  # points that are not passed many times between two kills
# Damage that leaves the connection whole: other kinds cost each time a deadline and the node some time
HARMLESS = ("flip", "resigned", "swap", "truncate", "extend", "miss", "refuse")
WEIGHTS = {"flip": 40, "resigned": 16, "hang": 1, "drop": 1}
_FIELDS: Mapping[str, Sequence[str]] = {"flip": FIELDS, "resigned": RESIGNED_FIELDS}
_Card = TypeVar("_Card")


class Deck(Generic[_Card]):
    """Deals each card once before any comes again: no kind of fault is left to luck."""

    def __init__(self, order: random.Random, cards: Sequence[_Card]) -> None:
        self._order, self._cards = order, list(cards)
        self._left: list[_Card] = []

    def deal(self) -> _Card:
        if not self._left:
            self._left = self._order.sample(self._cards, len(self._cards))
        return self._left.pop()


@dataclass
class Trouble:
    """Something that is wrong until `end_at`."""

    end_at: float
    end: Callable[[], None]


class Mischief:
    """Makes trouble in a world. `step` may be called as often as one likes; `calm` ends all trouble."""

    def __init__(self, world: World, seed: str) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._seed = seed
        self._random = random.Random(seed)
        self._troubles: dict[str, Trouble] = {}
        self._num_engines = 0
        self._present = [True] * len(world.proxies)
        # Weights of what costs little each time, while nodes are well and while they are not
        self._light: Sequence[tuple[int, int, str, Callable[[], None]]] = (
            (30, 40, "record", self._arm_record),
            (6, 6, "flip", self._flip_arena),
            (6, 4, "disk", self._disk),
            (0, 6, "slow", self._slow_node),
            (0, 3, "cut", self._cut_node),
            (0, 3, "swallow", self._swallow),
            (0, 2, "black_hole", self._black_hole),
            (0, 1, "refuse", self._refuse),
            (0, 1, "frozen_node", self._freeze_node),
            (0, 1, "killed_node", self._kill_node),
            (0, 1, "nodes_file", self._change_nodes),
            (58, 32, "nothing", lambda: None),
        )
        self._are_nodes_well = False
        # What stops everybody for a while, dealt in turn
        self._heavy = Deck[tuple[str, Callable[[], None]]](
            self._random,
            [
                *[("kill_point", self._kill_at_a_point)] * 6,
                ("killed_worker", self._kill_worker),
                ("killed_worker", self._kill_worker),
                ("killed_supervisor", self._kill_supervisor),
                *[("killed_engine", self._kill_engine)] * 2,
                ("frozen_sidecar", self._freeze_sidecar),
                ("frozen_engine", self._freeze_engine),
                *[("reopened", self._reopen)] * 2,
            ],
        )
        self._heavy_at = time.monotonic() + HEAVY_SECONDS
        self._kills = Deck(self._random, kills_of_all())
        self._fields = {kind: Deck(self._random, fields) for kind, fields in _FIELDS.items()}
        self._arena_fields = Deck(self._random, [*FIELDS, *["payload"] * len(FIELDS)])
        self._disk_deck = Deck(self._random, DISK_FAULTS)

    def begin(self) -> None:
        """Start the first engine."""
        self._new_engine()

    def new_storm(self) -> None:
        """In every other storm the nodes are well, so that much of what is read comes from them."""
        self._are_nodes_well = not self._are_nodes_well

    def step(self) -> None:
        """End what is due, and begin one thing."""
        now = time.monotonic()
        for name in [name for name, trouble in self._troubles.items() if trouble.end_at <= now]:
            self._troubles.pop(name).end()
        if now >= self._heavy_at:
            self._heavy_at = now + self._random.uniform(0.5, 1.5) * HEAVY_SECONDS
            name, act = self._heavy.deal()
        else:
            weights = [well if self._are_nodes_well else ill for well, ill, _, _ in self._light]
            ((_, _, name, act),) = self._random.choices(self._light, weights)
        self.counts[name] = self.counts.get(name, 0) + 1
        act()

    def calm(self) -> None:
        """End all trouble and forget what is armed."""
        for trouble in self._troubles.values():
            trouble.end()
        self._troubles.clear()
        for proxy in self._world.proxies:
            proxy.disarm()
        self._world.sidecar.steering.clear()

    def _for_a_while(self, name: str, longest: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
        if name not in self._troubles:
            begin()
            self._troubles[name] = Trouble(time.monotonic() + self._random.uniform(0.02, longest), end)

    def _node(self) -> int:
        return self._random.randrange(len(self._world.proxies))

    def _arm_record(self) -> None:
        proxy = self._world.proxies[self._node()]
        if proxy.num_armed >= MAX_ARMED:
            proxy.disarm()  # nothing of theirs passes now; others may
        proxy.arm(self._record_fault())

    def _record_fault(self) -> Fault:
        where = self._random.choices(("fetch", "store", "ack"), (75, 15, 10))[0]
        kinds = [kind for kind in KINDS[where] if not self._are_nodes_well or kind in HARMLESS]
        weights = [WEIGHTS.get(kind, 4) for kind in kinds]
        (kind,) = self._random.choices(kinds, weights)
        field = self._fields[kind].deal() if kind in self._fields else ""
        return Fault(where, kind, field, self._random.randrange(2**16))

    def _flip_arena(self) -> None:
        # Mostly in blocks that came lately: they are those that are asked for again
        places = [1 - self._random.random() ** 2 * 0.999 - 0.0005 for _ in range(4)]
        flips = [(self._arena_fields.deal(), self._random.randrange(2**16), place) for place in places]
        self._world.sidecar.steering.flip(flips)

    def _slow_node(self) -> None:
        proxy = self._world.proxies[self._node()]
        name = f"slow {proxy.port}"
        if self._random.random() < 0.5:
            seconds = self._random.choice((0.002, 0.02, 0.1, 0.4))
            self._for_a_while(name, 0.5, lambda: proxy.delay(seconds), lambda: proxy.delay(0.0))
        else:
            rate = self._random.choice((5e4, 1e6, 10e6))
            self._for_a_while(name, 0.5, lambda: proxy.throttle(rate), lambda: proxy.throttle(None))

    def _cut_node(self) -> None:
        self._world.proxies[self._node()].cut()

    def _swallow(self) -> None:
        self._world.proxies[self._node()].swallow(self._random.choice((1, 3, 100, 7000)))

    def _black_hole(self) -> None:
        proxy = self._world.proxies[self._node()]
        self._for_a_while(
            f"hole {proxy.port}", 0.8, lambda: proxy.black_hole(True), lambda: proxy.black_hole(False)
        )  # fmt: skip

    def _refuse(self) -> None:
        proxy = self._world.proxies[self._node()]

        def begin() -> None:
            proxy.refuse(True)
            proxy.cut()

        self._for_a_while(f"refuse {proxy.port}", 0.5, begin, lambda: proxy.refuse(False))

    def _freeze_node(self) -> None:
        number = self._node()
        node = self._world.nodes[number]
        if f"down {number}" not in self._troubles:
            self._for_a_while(f"down {number}", 0.6, node.stop, node.resume)

    def _kill_node(self) -> None:
        number = self._node()
        node, proxy = self._world.nodes[number], self._world.proxies[number]
        moves = self._random.random() < 0.5

        def end() -> None:
            if moves:
                node.move()
                proxy.retarget("127.0.0.1", node.port)
            else:
                node.restart()

        self._for_a_while(f"down {number}", 0.3, node.kill, end)

    def _change_nodes(self) -> None:
        number = self._node()
        is_garbage = self._random.random() < 0.2

        def begin() -> None:
            if is_garbage:
                self._world.sidecar.nodes_file.write_text("{")
            else:
                self._present[number] = False
                self._world.write_nodes(self._present)

        def end() -> None:
            self._present = [True] * len(self._present)
            self._world.write_nodes(self._present)

        self._for_a_while("nodes", 1.0, begin, end)

    def _freeze_sidecar(self) -> None:
        signal_worker = self._world.sidecar.signal_worker
        self._for_a_while(
            "frozen sidecar", 0.8, lambda: signal_worker(signal.SIGSTOP), lambda: signal_worker(signal.SIGCONT)
        )

    def _kill_at_a_point(self) -> None:
        point, when = self._kills.deal()
        countdown = 1 if point in SELDOM else self._random.randint(1, 12)
        self._world.sidecar.steering.kill(Kill(point, when, countdown))
        if point in ("lapse", "attached"):  # passed only when an engine goes or comes
            self._reopen()

    def _kill_worker(self) -> None:
        self._world.sidecar.signal_worker(signal.SIGKILL)

    def _kill_supervisor(self) -> None:
        self._world.sidecar.kill_supervisor()

    def _kill_engine(self) -> None:
        self._end_frozen_engine()
        self._world.end_engine(is_killed=True)
        self._new_engine()

    def _new_engine(self) -> None:
        self._num_engines += 1
        namespace = self._random.randrange(NUM_NAMESPACES) if self._num_engines % 4 == 0 else 0
        self._world.start_engine(namespace, f"{self._seed}/{self._num_engines}")

    def _freeze_engine(self) -> None:
        engine = self._world.engine
        assert engine is not None
        process = engine.process
        self._for_a_while(
            "frozen engine",
            2.5,
            lambda: process.send_signal(signal.SIGSTOP),
            lambda: process.send_signal(signal.SIGCONT),
        )

    def _end_frozen_engine(self) -> None:
        trouble = self._troubles.pop("frozen engine", None)
        if trouble is not None:
            trouble.end()

    def _reopen(self) -> None:
        assert self._world.engine is not None
        self._world.engine.tell("reopen")

    def _disk(self) -> None:
        if "disk" not in self._troubles:
            fault = self._disk_deck.deal()
            steering = self._world.sidecar.steering
            self._for_a_while("disk", 0.7, lambda: steering.disk([fault]), lambda: steering.disk([]))


def kills_of_all() -> list[tuple[str, str]]:
    """Every point of the worker's life at which it is killed, with when."""
    whens = {point: ("before", "after", *(["torn"] if point in TORN_POINTS else [])) for point in KILL_POINTS}
    return [(point, when) for point, choices in whens.items() for when in choices]


def names_of_all() -> set[str]:
    """Every kind of fault that a long run must have done, as proxies and hooks count them."""
    records = {
        Fault(where, kind, field).name
        for where, kinds in KINDS.items()
        for kind in kinds
        for field in _FIELDS.get(kind, ("",))
    }
    kills = {f"kill.{point}.{when}" for point, when in kills_of_all()}
    flips = {f"arena.flip.{field}" for field in FIELDS}
    disk = {f"disk.{fault.call}.{fault.kind}" for fault in DISK_FAULTS}
    return records | kills | flips | disk | {"delay", "throttle", "black_hole", "refuse", "cut", "swallow"}
