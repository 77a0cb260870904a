"""References that differ only by rounding: in sums over shards, and inside shards."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import ml_dtypes
import numpy as np

from harness.host_facts import n_usable_cores
from harness.verification.differences import is_inexact, widened
from harness.worker.variable_parts import Array
from strategies.ir.graph import DType
from strategies.ir.train_graph import Boundary, Reduction
from strategies.ir.variable import Rule
from strategies.topology import Shard

Value = TypeVar("Value")
Crossed: TypeAlias = tuple[Array, Array | None]
"""Values that cross a boundary, and row ids if they are sparse."""

EPS: Mapping[str, float] = {
    "double": 2.0**-52,
    "complex128": 2.0**-52,
    "float": 2.0**-23,
    "complex64": 2.0**-23,
    "half": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""Dtype → distance from 1 to the next number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """A way to compute the reference that differs from it only by rounding.

    Attributes:
        order: number of shards → order in which they are added.
        pairwise: True adds neighbours first, then neighbouring sums.
        jitter: seed of factors (1 + eps·u), u uniform in [−1, 1], on shards' contributions and on the inputs
            of their forward and backward pass; None for none.
    """

    name: str
    order: Callable[[int], Sequence[int]] = range
    pairwise: bool = False
    jitter: int | None = None


_EXACT_PER_UNIT = 256.0
"""Multiples of 1/256 in examples are exact (decision 0074)."""

PLAIN = Rounding(name="in order")
# Each is one more reference for the noise floor.
VARIATIONS = (
    Rounding(name="reversed", order=lambda n: range(n)[::-1], jitter=1),
    Rounding(name="pairwise", pairwise=True, jitter=2),
    Rounding(name="jittered", jitter=3),
)
MORE_VARIATIONS = (
    *VARIATIONS,
    *(Rounding(name=f"jittered {seed}", jitter=seed) for seed in range(4, 65)),
)
"""64 references: a jump in 4 % of references is in at least one of them in 93 % of cases (decision 0105)."""


def coarsest_eps(dtypes: Collection[DType]) -> float:
    """Largest rounding unit among dtypes."""
    return max((EPS[dtype] for dtype in dtypes if dtype in EPS), default=EPS["float"])


def shares(shards: Sequence[Shard]) -> list[float]:
    """Share of each shard in a batch's examples, in order."""
    return [shard.examples / shards[-1].stop for shard in shards]


def weights_of(shards: Sequence[Shard], rule: Rule) -> list[float]:
    """Weight of each shard in the mean or sum, in order."""
    return shares(shards) if rule == "mean" else [1.0] * len(shards)


def in_threads(function: Callable[..., Value], *arguments: Sequence[Any]) -> list[Value]:
    """Call a function for each argument, on all cores; NumPy releases Python's lock. Results are in order."""
    with ThreadPoolExecutor(n_usable_cores()) as pool:
        return list(pool.map(function, *arguments))


class RoundedSums:
    """Sums over shards in float64, with one way of rounding.

    Args:
        random: generator of the jitter; None starts a new one from the rounding's seed.
    """

    def __init__(self, rounding: Rounding, random: np.random.Generator | None = None) -> None:
        self.rounding = rounding
        self._random = np.random.default_rng(rounding.jitter) if random is None else random

    def apart(self, n: int) -> "list[RoundedSums]":
        """Sums for n threads, each with its own jitter derived from this one's."""
        return [RoundedSums(self.rounding, random) for random in self._random.spawn(n)]

    def order(self, n_shards: int) -> Sequence[int]:
        return self.rounding.order(n_shards)

    def of_boundary(self, b: Boundary, crossed: Sequence[Crossed], shards: Sequence[Shard]) -> Crossed:
        if b.rule == "first-replica":
            return crossed[0]
        order = self.order(len(shards))
        weight = weights_of(shards, b.rule)
        weights = [weight[i] for i in order]
        values = [crossed[i][0] for i in order]
        kind = values[0].dtype
        if b.indices is not None:
            rows = self._terms(values, weights)
            ids = [crossed[i][1] for i in order]
            return np.concatenate(rows).astype(kind), np.concatenate([i for i in ids if i is not None])
        if np.issubdtype(kind, np.integer):
            return sum(values[1:], start=values[0]), None
        return self._total(values, weights), None

    def of_losses(self, losses: Sequence[float], shards: Sequence[Shard], rule: Reduction) -> float:
        weights = weights_of(shards, rule)
        return sum(losses[i] * weights[i] for i in self.order(len(shards)))

    def of_all(self, values: Sequence[Array], shards: Sequence[Shard], rule: Reduction) -> Array:
        order, weight = self.order(len(shards)), weights_of(shards, rule)
        return self._total([values[i] for i in order], [weight[i] for i in order])

    def _total(self, values: Sequence[Array], weights: Sequence[float]) -> Array:
        terms = self._terms(values, weights)
        total = _pairwise(terms) if self.rounding.pairwise else _in_order(terms)
        return np.asarray(total).astype(values[0].dtype)

    def _terms(self, values: Sequence[Array], weights: Sequence[float]) -> list[Array]:
        return [self._jittered(widened(v) * w, v.dtype) for v, w in zip(values, weights, strict=True)]

    def _jittered(self, value: Array, kind: np.dtype[Any]) -> Array:
        if self.rounding.jitter is None:
            return value
        return np.asarray(value * (1 + _eps(kind) * self._random.uniform(-1, 1, value.shape)))


def merged_rows(values: Array, ids: Array | None) -> Crossed:
    """One row per id, the sum of the rows with that id; dense values unchanged.

    Args:
        values: [n, …]. ids: [n], None for dense values.
    """
    if ids is None:
        return values, None
    unique, position = np.unique(ids, return_inverse=True)
    total = np.zeros((len(unique), *values.shape[1:]), widened(values).dtype)
    np.add.at(total, position, widened(values))
    return total.astype(values.dtype), unique


class RoundedReads:
    """Trainables and examples as read by forward and backward pass: changed as much as by rounding.

    Without this, a gradient that consists of rounding alone, such as a bias' before BatchNormalization, would
    be equal in references with the same order of computation, and differ in all other correct computations.

    Args:
        eps: rounding unit of the coarsest dtype in the forward and backward pass.
    """

    def __init__(self, rounding: Rounding, eps: float) -> None:
        self.exact = rounding.jitter is None
        # Different draws from those for contributions.
        self._random = np.random.default_rng(None if rounding.jitter is None else [rounding.jitter, 1])
        self._eps = eps

    def of(self, value: Array) -> Array:
        return self._of(value, self._random)

    def of_each(self, values: Sequence[Array]) -> list[Array]:
        return in_threads(self._of, values, self._random.spawn(len(values)))

    def _of(self, value: Array, random: np.random.Generator) -> Array:
        if self.exact or not is_inexact(value):
            return value
        factors = 1 + self._eps * random.uniform(-1, 1, value.shape)
        return np.asarray(widened(value) * factors).astype(value.dtype)

    def of_examples(self, value: Array) -> Array:
        """Round examples except multiples of 1/256: classes, masks and bounds stay exact.

        A label 3.0 that is slightly lowered would be read as class 2, which is more than rounding.
        """
        rounded = self.of(value)
        if rounded is value or np.iscomplexobj(value):
            return rounded
        multiples = value.astype(np.float64) * _EXACT_PER_UNIT
        return np.where(multiples == np.trunc(multiples), value, rounded)


def _eps(kind: np.dtype[Any]) -> float:
    # NumPy's own finfo lacks bfloat16; that of ml_dtypes lacks integers and others.
    return float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]


def _in_order(terms: Sequence[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _pairwise(terms: Sequence[Array]) -> Array:
    while len(terms) > 1:
        terms = list(_pairs(terms))
    return terms[0]


def _pairs(terms: Sequence[Array]) -> Iterator[Array]:
    for i in range(0, len(terms) - 1, 2):
        yield terms[i] + terms[i + 1]
    if len(terms) % 2:
        yield terms[-1]
