"""Results of steps beside their loss: of each shard, and of all together by a rule; no TensorFlow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.verification.reference import is_inexact, largest_difference, widened
from harness.worker.variable_parts import Array
from strategies.ir.train_graph import Result, ResultRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """One result of a step.

    Attributes:
        per_shard: value of each shard, by rank. weights: their shares of the global batch.
    """

    name: str
    rule: ResultRule
    per_shard: tuple[Array, ...]
    weights: tuple[float, ...]

    def reduced(self) -> Array | None:
        """The global batch's, by the rule; None where each shard's stays its own, or they do not join."""
        if self.rule == "mean":
            return np.asarray(np.dot(self.weights, widened(np.asarray(self.per_shard))))
        if self.rule == "sum":
            # In Python's integers: a count of the batch may be too large for the type of a shard's.
            return np.asarray(sum(value.item() for value in self.per_shard))
        # Rows that are padded to a shard's longest differ between shards.
        joins = len({value.shape[1:] for value in self.per_shard}) == 1
        return np.concatenate(self.per_shard) if self.rule == "concatenate" and joins else None


def returned(pairs: Iterable[tuple[Result, Array]]) -> tuple[Returned, ...]:
    """Results of all shards, in the order of their names' first."""
    by_name: dict[str, list[tuple[Result, Array]]] = {}
    for result, value in pairs:
        by_name.setdefault(result.name, []).append((result, np.asarray(value)))
    results = []
    for name, given in by_name.items():
        in_order = sorted(given, key=lambda pair: pair[0].rank)
        results.append(
            Returned(
                name=name,
                rule=in_order[0][0].rule,
                per_shard=tuple(value for _, value in in_order),
                weights=tuple(result.weight for result, _ in in_order),
            )
        )
    return tuple(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResult:
    """One result of the last step beside the reference's.

    Only numbers and words are kept as they are; of arrays and complex numbers shape and error.

    Attributes:
        shape: of all shards' together where they join, else of the first one's.
        value, reference_value: the global batch's, None where there is none or it is not kept.
        error: the largest among the shards, as a share of the largest value; infinite for unequal integers
            or words.
    """

    name: str
    rule: ResultRule
    shape: tuple[int, ...]
    value: object
    reference_value: object
    per_shard: tuple[object, ...]
    error: float


def compared(own: Sequence[Returned], expected: Sequence[Returned]) -> tuple[ComparedResult, ...]:
    """Results of the last step beside the reference's, in their order."""
    of_name = {each.name: each for each in expected}
    return tuple(_compared(each, of_name[each.name]) for each in own)


def _compared(own: Returned, expected: Returned) -> ComparedResult:
    value = own.reduced()
    pairs = zip(own.per_shard, expected.per_shard, strict=True)
    return ComparedResult(
        name=own.name,
        rule=own.rule,
        shape=(own.per_shard[0] if value is None else value).shape,
        value=_scalar(value),
        reference_value=_scalar(expected.reduced()),
        per_shard=tuple(_scalar(each) for each in own.per_shard),
        error=max(_error(shard, other) for shard, other in pairs),
    )


def _scalar(value: Array | None) -> object:
    if value is None or value.shape != () or np.iscomplexobj(value):
        return None
    scalar = value.item()
    return scalar.decode(errors="replace") if isinstance(scalar, bytes) else scalar


def _error(value: Array, expected: Array) -> float:
    if value.shape == expected.shape and np.array_equal(value, expected, equal_nan=is_inexact(expected)):
        return 0.0
    if value.shape != expected.shape or not is_inexact(expected):
        return float("inf")
    largest = largest_difference(expected, np.zeros_like(expected))
    # Where the reference is not finite its largest value is not either, and the quotient would hide it.
    return largest_difference(value, expected) / largest if 0.0 < largest < float("inf") else float("inf")
