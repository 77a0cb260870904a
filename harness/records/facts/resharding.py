"""Resharding of variables around host loops: how often it happened, what it sent, and what memory it left."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaResharding:
    """What one replica counted since its variables were loaded.

    Attributes:
        n_loops: runs of the host loop.
        reshards: times that an iteration asked for the format of its program.
        shards, unshards: times that variables were really taken apart, and put together.
        sent_bytes: for putting them together.
        whole_bytes, kept_bytes: of the variables that lie in parts: whole, and as they lie within a loop.
    """

    n_loops: int
    reshards: int
    shards: int
    unshards: int
    sent_bytes: int
    whole_bytes: int
    kept_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resharding:
    """Resharding of a case, for one run of its host loop on average.

    `reshards`, `shards` and `unshards` are those of a replica, `sent_bytes` those of all together.
    `whole_bytes` and `kept_bytes`, of the replica with the most, are what variables that lie in parts take
    whole and within a loop.
    """

    n_loops: int
    reshards: float
    shards: float
    unshards: float
    sent_bytes: float
    whole_bytes: int
    kept_bytes: int

    @classmethod
    def of(cls, replicas: Sequence[ReplicaResharding]) -> "Resharding | None":
        """The mean over replicas, None where none reshards or none has run a loop."""
        n_loops = sum(each.n_loops for each in replicas)
        if not n_loops:
            return None
        return cls(
            n_loops=max(each.n_loops for each in replicas),
            reshards=sum(each.reshards for each in replicas) / n_loops,
            shards=sum(each.shards for each in replicas) / n_loops,
            unshards=sum(each.unshards for each in replicas) / n_loops,
            sent_bytes=sum(each.sent_bytes for each in replicas) * len(replicas) / n_loops,
            whole_bytes=max(each.whole_bytes for each in replicas),
            kept_bytes=max(each.kept_bytes for each in replicas),
        )
