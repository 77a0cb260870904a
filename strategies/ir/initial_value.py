"""Values that variables begin with when a strategy made them and no capture has a value for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Inherits: TypeAlias = Literal["own", "first", "alike", "share", "nothing"]
_TYPES = {"float": np.float32, "double": np.float64, "int64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A first value.

    Attributes:
        kind: zeros, normal draws of this seed, or `seed`: the seed itself and then zeros.
        dtype: float, double or int64.
        inherits: what a replica gets of the values that a checkpoint has for the replicas that saved it: its
            `own`; the `first` of all, where all replicas must have the same, or, where a value of another
            shape must not be passed over either, `alike`; or its `share` of their sum,
            which is its own and, for the first of `owners`, those of all ranks that are no owners any more;
            or `nothing`, for what counts from the start of a session.
        owners: the ranks that have such a variable, in ascending order.
    """

    kind: Literal["zeros", "normal", "seed"]
    dims: tuple[int, ...]
    dtype: str
    seed: int = 0
    inherits: Inherits = "own"
    owners: tuple[int, ...] = ()

    def value(self) -> Array:
        """The value, the same each time."""
        if self.kind == "normal":
            return np.random.default_rng(self.seed).standard_normal(self.dims).astype(_TYPES[self.dtype])
        array = np.zeros(self.dims, _TYPES[self.dtype])
        if self.kind == "seed":
            array[0] = self.seed
        return array

    def inherited(self, rank: int | None, saved: Mapping[int, Array]) -> Array:
        """The value with which a replica goes on from a checkpoint.

        Args:
            saved: rank → value of these dimensions.
        """
        own = None if self.inherits == "nothing" else saved.get(rank or 0)
        if saved and self.inherits in ("first", "alike"):
            own = saved[min(saved)]
        elif self.inherits == "share" and self.owners[:1] == (rank,):
            orphaned = [saved[r] for r in sorted(saved) if r not in self.owners]
            own = sum(orphaned, start=self.value() if own is None else own)
        return self.value() if own is None else own.astype(_TYPES[self.dtype])
