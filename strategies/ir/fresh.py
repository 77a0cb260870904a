"""Values that variables begin with when a strategy made them and no capture has a value for them."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_TYPES = {"float": np.float32, "double": np.float64, "int64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A first value.

    Attributes:
        kind: zeros, normal draws of this seed, or `seed`: the seed itself and then zeros.
        dtype: float, double or int64.
    """

    kind: Literal["zeros", "normal", "seed"]
    dims: tuple[int, ...]
    dtype: str
    seed: int = 0

    def value(self) -> npt.NDArray[Any]:
        """The value, the same each time."""
        if self.kind == "normal":
            return np.random.default_rng(self.seed).standard_normal(self.dims).astype(_TYPES[self.dtype])
        made = np.zeros(self.dims, _TYPES[self.dtype])
        if self.kind == "seed":
            made[0] = self.seed
        return made
