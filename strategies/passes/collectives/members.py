"""Members of collectives, and the keys that identify them: equal on every task."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from strategies.errors import StrategyError
from strategies.passes.task_plan import Between
from strategies.topology import Replica, Topology

GROUP_KEY = 1
# Key of a group with one replica per worker, if workers have several.
LEADERS_KEY = 2
GATHER_GROUP_KEY = 3
"""Key of a group with the members of `GROUP_KEY`, for gathers of updated values: groups have separate
instance keys."""
STATISTICS_KEY = 4
"""Key of a group with one host per worker, which sums the values of all its replicas."""
VARIABLES_KEY = 5
"""Key of a group with the members of `GROUP_KEY`, for gathers of the values that forward starts with."""
SCATTER_KEY = 6
"""Key of a group with the members of `GROUP_KEY`, for sums that go to owners."""
_FIXED_KEYS = 1 << 20
# A sparse gather's shape differs between steps, and TensorFlow fixes the first shape of a key; such a gather
# therefore has one key per length, from a range of its own.
ROWS_PER_RANGE = 1 << 22
_N_RANGES = ((1 << 31) - _FIXED_KEYS) // ROWS_PER_RANGE


def instance_keys(names: Iterable[str]) -> dict[str, int]:
    """One key per all-reduce; names that collide move on to the next free key, in sorted order."""
    return _assign(names, _FIXED_KEYS // 2 - 1)


def length_keys(names: Iterable[str]) -> dict[str, int]:
    """One key per gather of lengths, from another range than the all-reduces' keys."""
    return {name: _FIXED_KEYS // 2 + key for name, key in _assign(names, _FIXED_KEYS // 4 - 1).items()}


def compressed_keys(names: Iterable[str]) -> dict[str, int]:
    """One key per collective of compressed gradients, from a range of their own."""
    return {name: _FIXED_KEYS // 4 * 3 + key for name, key in _assign(names, _FIXED_KEYS // 4 - 1).items()}


def key_ranges(names: Iterable[str]) -> dict[str, int]:
    """First key of a range of `ROWS_PER_RANGE` keys, for each collective of varying length.

    Raises:
        StrategyError: there are more names than ranges.
    """
    return {
        name: _FIXED_KEYS + (slot - 1) * ROWS_PER_RANGE for name, slot in _assign(names, _N_RANGES).items()
    }


def _assign(names: Iterable[str], n_keys: int) -> dict[str, int]:
    keys: dict[str, int] = {}
    used_tasks: set[int] = set()
    for name in sorted(set(names)):
        if len(used_tasks) == n_keys:
            raise StrategyError(
                f"collective {name!r}: there are {n_keys} keys of its kind, got more collectives; put some "
                "variables on a parameter server"
            )
        key = zlib.crc32(name.encode()) % n_keys
        while key + 1 in used_tasks:
            key = (key + 1) % n_keys
        used_tasks.add(key + 1)
        keys[name] = key + 1
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members of a step's collectives.

    Attributes:
        group: number of members, and key of their group.
        order: for each place of TensorFlow's group, the place of its member in `ranks`.
    """

    ranks: tuple[int, ...]
    group: tuple[int, int]
    order: tuple[int, ...]

    @classmethod
    def of(cls, topology: Topology, between: Between) -> "Members":
        """Members that exchange values.

        Raises:
            StrategyError: there is only one.
        """
        replicas = topology.replicas()
        ranks = tuple(r.rank for r in replicas if between == "replicas" or r.local == 0)
        if len(ranks) < 2:
            only = "replica" if between == "replicas" else "worker"
            raise StrategyError(
                f"all-reduce: a collective needs at least two members, got one {only}; raise workers or "
                "replicas, or use `single`"
            )
        key = GROUP_KEY if len(ranks) == len(replicas) else LEADERS_KEY
        places = {rank: place for place, rank in enumerate(ranks)}
        order = tuple(places[rank] for rank in topology.collective_order() if rank in places)
        return cls(ranks=ranks, group=(len(ranks), key), order=order)

    def local(self, topology: Topology, task: int) -> tuple[Replica, ...]:
        """Members of one task."""
        return tuple(r for r in topology.local_replicas(task) if r.rank in self.ranks)
