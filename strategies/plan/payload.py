"""Payload: bytes of gradients, rows and values as tasks send them, from the plan alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.ir.graph import DType, element_bytes, n_elements
from strategies.plan.compressors import is_added_up, payload_bytes
from strategies.plan.schema import PlanNode, VariableSummary

_ACCUMULATED = frozenset({"half", "float", "double"})
"""Types for which TensorFlow has accumulator kernels."""


def accumulated_type(dtype: str) -> DType:
    """Type in which a server's accumulator sums gradients of a type."""
    return DType(dtype if dtype in _ACCUMULATED else "double")


def vector_type(dtypes: Iterable[str]) -> DType:
    """Type of a worker's gradient vector under a rule."""
    return DType("double" if "double" in dtypes else "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTypes:
    """Types in which a plan's gradients are sent.

    Attributes:
        vector: type of a worker's gradient vector if a rule combines gradients, None if they are summed.
        are_accumulated: True if servers sum gradients as they arrive, False if each worker's gradients make
            an update.
    """

    vector: DType | None = None
    are_accumulated: bool = True

    def of_gradient(self, dtype: str) -> DType:
        """Type of a dense gradient; an accumulator casts it on arrival."""
        return self.vector or DType(dtype)

    def of_rows(self, dtype: str) -> DType:
        """Type of rows; the worker casts them before sending."""
        return self.vector or (accumulated_type(dtype) if self.are_accumulated else DType(dtype))


ID_BYTES = 8


def row_crossings(variable: VariableSummary) -> int:
    """Number of times per step that rows of a variable's gradient cross replicas."""
    return variable.crossings - variable.dense_crossings


def dense_crossings(node: PlanNode, variable: VariableSummary) -> int:
    """Number of times per step that a variable's dense gradient or its new state crosses replicas."""
    return variable.dense_crossings if node.sparse else variable.crossings


def is_summed(node: PlanNode) -> bool:
    """True if gradients are summed on the network; others are first gathered from all members."""
    return node.compressor is None or is_added_up(node.compressor)


def encoded_bytes(node: PlanNode) -> int:
    """Bytes of a gradient as it is sent."""
    return node.bytes if node.compressor is None else payload_bytes(node.shape, node.dtype, node.compressor)


def gradient_bytes(node: PlanNode, types: WireTypes) -> int:
    """Bytes of a dense gradient in the type in which it is sent."""
    return element_bytes(types.of_gradient(node.dtype)) * n_elements(node.shape)


def row_bytes(node: PlanNode, dtype: str | None = None) -> int:
    """Bytes of one row of a sparse gradient, in this type or its own."""
    return element_bytes(dtype or node.dtype) * n_elements(node.shape[1:])


def most_rows_bytes(
    node: PlanNode, variable: VariableSummary, shards: Sequence[float], dtype: str | None = None
) -> float:
    """Upper bound of the bytes of rows and ids of a sparse gradient.

    Args:
        shards: examples of each shard whose gradients are together.
        dtype: type in which rows are sent; None for their own type.
    """
    return most_rows(node, variable, shards) * (row_bytes(node, dtype) + ID_BYTES)


def most_rows(node: PlanNode, variable: VariableSummary, shards: Sequence[float]) -> float:
    """Upper bound of the rows that a sparse gradient of these shards has."""
    rows = looked_up(node, variable, shards)
    return min(float(node.shape[0]), rows) if node.merges_rows else rows


def looked_up(node: PlanNode, variable: VariableSummary, shards: Sequence[float]) -> float:
    """Number of rows that these shards look up, equal ids counted; a part of a table has its share."""
    table = rows = float(variable.shape[0])
    if variable.rows_per_example is not None:
        rows = variable.rows_per_example * sum(shards) + variable.rows_per_step * len(shards)
    return rows * node.shape[0] / max(table, 1.0)
