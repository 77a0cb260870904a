"""Types in which gradients travel to where they are combined."""

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.ir.graph import DType

_ACCUMULATED = frozenset({"half", "float", "double"})
"""Types for which TensorFlow has kernels of accumulators."""


def accumulated_type(dtype: str) -> DType:
    """The type in which a server's accumulator adds up gradients of a type."""
    return DType(dtype if dtype in _ACCUMULATED else "double")


def vector_type(dtypes: Iterable[str]) -> DType:
    """The type of vectors that a rule sees, of a worker's gradients of these types."""
    return DType("double" if "double" in dtypes else "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTypes:
    """Types in which a plan's gradients travel.

    Attributes:
        vector: of a worker's gradients where a rule combines those of all, None where they are added up.
        are_accumulated: servers add gradients up as they come; without, each worker's make an update.
    """

    vector: DType | None = None
    are_accumulated: bool = True

    def of_gradient(self, dtype: str) -> DType:
        """Of a dense gradient; to an accumulator's type it is cast where it arrives."""
        return self.vector or DType(dtype)

    def of_rows(self, dtype: str) -> DType:
        """Type of rows on their way to a server; the worker casts them before it sends them."""
        return self.vector or (accumulated_type(dtype) if self.are_accumulated else DType(dtype))
