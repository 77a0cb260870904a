"""Transfers through a transport of the workers' own, once in a step."""

from dataclasses import dataclass
from typing import Literal

from strategies.ir.graph import DType

BEFORE_ALL = 0
"""The level of what travels before anything crosses a boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Something that all workers do together: each gives, goes on, and takes what comes when it needs it.

    Attributes:
        name: the same on all workers.
        kind: `sum`, of which everybody gets all; `scatter`, a sum of which each gets a share; `gather`, in
            which everybody gets the shares of all others; `concatenate`, in which everybody gets the vectors
            of all, one after the other by task, of lengths that only the step tells.
        shares: elements of each worker's share, by task; empty where nobody has a share.
        level: of the boundary that is crossed so, or of the update whose result travels; `BEFORE_ALL` of
            values that forward begins with.
        wire: type that the values of a sum have on their way; their own unless given.
        factor: what a sum is multiplied by once it is complete.
        contiguous: of a gather, whether a worker gets one vector of all shares by task, its own among them.
            The same bytes travel either way, so that workers may differ in it.
    """

    name: str
    kind: Literal["sum", "scatter", "gather", "concatenate"] = "sum"
    shares: tuple[int, ...] = ()
    level: int = 1
    wire: DType | None = None
    factor: float = 1.0
    contiguous: bool = False

    def comes(self, task: int, length: int) -> tuple[int, ...]:
        """Elements of each vector that comes to a worker.

        Those of a gather are one for each worker, its own empty, or one for all together.

        What is concatenated tells its lengths itself.

        Args:
            length: of the first vector that it gave.
        """
        if self.contiguous:
            return (sum(self.shares),)
        if self.kind == "gather":
            return tuple(0 if k == task else n for k, n in enumerate(self.shares))
        return (length if self.kind == "sum" else self.shares[task],)

    @property
    def given_token(self) -> str:
        """Of the call that gives a vector, or several, of a scatter one for each worker, and returns."""
        return f"{self.name}/given"

    @property
    def taken_token(self) -> str:
        """Of the call that waits for what comes: a vector.

        Of a gather that is not contiguous come the vectors of all others, of what is concatenated as many as
        were given.
        """
        return f"{self.name}/taken"
