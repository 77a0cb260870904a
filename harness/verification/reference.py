"""References: expected results of a strategy, with tolerances, and the comparison with its actual results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TypeAlias

import numpy as np

from harness.errors import NON_FINITE_LOSS, CaseError
from harness.verification.differences import (
    GROUP_SHARE,
    NOISE_FACTOR,
    difference_of_unequal,
    is_inexact,
    largest_difference,
    largest_size,
    relative_error,
    widened,
)
from harness.verification.separability import Separability
from harness.verification.verdict import (
    FLOAT64_EPS,
    FigureVerdict,
    Limits,
    VariableVerdict,
    Verdict,
)
from harness.worker.variable_parts import Array, Copy
from strategies.ir.train_graph import Result, ResultRule
from strategies.plan.schema import StrategyClass

Gradient: TypeAlias = tuple[str, int]
"""Captured gradient: its variable, and its index among the gradients of that variable."""

STEP_FACTOR = 64.0
# A step may store a variable twice: decayed, then updated.
STORES_PER_STEP = 2
_EXACT = Limits(floor=0.0, tolerance=0.0, eps=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """One result of a step.

    Attributes:
        per_shard: value of each shard, by rank. weights: shares of the shards in the global batch.
    """

    name: str
    rule: ResultRule
    per_shard: tuple[Array, ...]
    weights: tuple[float, ...]

    def reduced(self) -> Array | None:
        """Value for the global batch, by the rule; None if shards' values are not joined."""
        if self.rule == "mean":
            return np.asarray(np.dot(self.weights, widened(np.asarray(self.per_shard))))
        if self.rule == "sum":
            # As Python integers: a count of the batch may be too large for the dtype of a shard's.
            return np.asarray(sum(value.item() for value in self.per_shard))
        # Rows padded to a shard's longest differ between shards.
        joins = len({value.shape[1:] for value in self.per_shard}) == 1
        return np.concatenate(self.per_shard) if self.rule == "concatenate" and joins else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """State and losses after some steps, of a reference or of a strategy.

    Attributes:
        values: every copy of every variable after the last step.
        losses: global loss of every step; None if only states are compared.
        gradient_norms: norms of all copies of each gradient in the first step, as used by updates.
        results: values that the last step returned besides its loss.
        initial: values before the first step. with_gradient: variables with a nonzero gradient in some step.
            Both are known for references only.
    """

    values: Mapping[Copy, Array]
    losses: Sequence[float] | None = None
    gradient_norms: Mapping[Gradient, Sequence[float]] = field(default_factory=dict)
    results: tuple[Returned, ...] = ()
    initial: Mapping[Copy, Array] = field(default_factory=dict)
    with_gradient: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A variable to compare.

    Attributes:
        group: variables whose movement scales its error if it hardly moved itself.
        eps: rounding unit of its dtype; 0 if its numbers are not rounded.
    """

    name: str
    kind: str
    group: str
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorm:
    """Norm of a gradient in the first step, the scale of its errors, and the error explained by rounding."""

    value: float
    scale: float
    limits: Limits

    def error(self, norms: Sequence[float]) -> float:
        return relative_error(np.asarray(norms, np.float64), np.full(len(norms), self.value), self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Errors that rounding explains.

    Attributes:
        limits: variable → limits of its error.
        gradient_norms: gradient → its norm in the first step, with limits.
        eps: rounding unit of the coarsest dtype in the computation of gradients.
    """

    limits: Mapping[str, Limits]
    loss_limits: Limits
    gradient_norms: Mapping[Gradient, GradientNorm]
    eps: float

    def judge_again(self, verdict: Verdict) -> Verdict:
        """Verdict by these tolerances if they explain all that seemed wrong; else the first one.

        Args:
            verdict: verdict by tolerances of fewer references.
        """
        loss = None if verdict.loss is None else replace(verdict.loss, limits=self.loss_limits)
        again = replace(
            verdict,
            variables=tuple(replace(v, limits=self.limits[v.name]) for v in verdict.variables),
            loss=loss,
            gradients=tuple(
                replace(g, limits=self.gradient_norms[g.name, g.place].limits) for g in verdict.gradients
            ),
            in_doubt=frozenset(verdict.wrong),
        )
        return again if verdict.is_explained_by(again) else verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Expected outcome of a strategy, with the tolerance of every number.

    Attributes:
        scales: variable → its movement, at least a thousandth of the largest in its group; for forward state,
            at least a thousandth of its own largest number.
        unmoved: trainables with a nonzero gradient that did not move.
        separability: None if shards were not compared with the whole batch.
    """

    variables: tuple[Checked, ...]
    outcome: Outcome
    scales: Mapping[str, float]
    unmoved: frozenset[str]
    tolerances: Tolerances
    separability: Separability | None = None

    @classmethod
    def of(
        cls,
        variables: Sequence[Checked],
        outcome: Outcome,
        others: Iterable[Outcome],
        *,
        loss_eps: float,
        gradient_eps: float = FLOAT64_EPS,
    ) -> "Reference":
        """Measure the tolerances of a reference.

        Args:
            others: outcomes that differ from it by rounding only, at least three, taken one after the other.
            loss_eps: rounding unit of the losses' dtype.
            gradient_eps: rounding unit of the coarsest dtype in the computation of gradients.
        """
        moved, stored = _moved(variables, outcome), _stored(variables, outcome)
        scales = _scales(variables, moved, outcome.values)
        still = {v.name for v in variables if v.kind == "trainable" and moved[v.name] == 0.0}
        reference = cls(
            variables=tuple(variables),
            outcome=outcome,
            scales=scales,
            unmoved=outcome.with_gradient & still,
            tolerances=Tolerances(limits={}, loss_limits=_EXACT, gradient_norms={}, eps=gradient_eps),
        )
        n_steps = len(reference.losses)
        floors, loss_floor = dict.fromkeys(scales, 0.0), 0.0
        norms: list[_Norms] = []
        for other in others:
            errors = reference.errors(other.values)
            floors = {name: max(floor, errors[name]) for name, floor in floors.items()}
            loss_floor = max(loss_floor, reference.loss_error(other.losses or ()))
            norms.append(other.gradient_norms)
        tolerances = Tolerances(
            limits={
                v.name: _limits(
                    floors[v.name],
                    v.eps,
                    n_steps,
                    per_store=v.eps * (stored[v.name] / scales[v.name]) if stored[v.name] else 0.0,
                )
                for v in variables
            },
            loss_limits=_limits(loss_floor, loss_eps, n_steps),
            gradient_norms=_gradient_norms(outcome.gradient_norms, norms, gradient_eps),
            eps=gradient_eps,
        )
        return replace(reference, tolerances=tolerances)

    @property
    def values(self) -> Mapping[Copy, Array]:
        return self.outcome.values

    @property
    def losses(self) -> Sequence[float]:
        return self.outcome.losses or ()

    def judge(self, actual: Outcome) -> Verdict:
        """Compare all copies of all variables, and the known losses and gradient norms."""
        errors = self.errors(actual.values)
        n_elements = {name: value.size for (name, _), value in self.values.items()}
        tolerances = self.tolerances
        return Verdict(
            variables=tuple(
                VariableVerdict(
                    name=v.name,
                    kind=v.kind,
                    group=v.group,
                    n_elements=n_elements[v.name],
                    update_error=errors[v.name],
                    limits=tolerances.limits[v.name],
                    unmoved=v.name in self.unmoved,
                    finite=self.scales[v.name] < inf,
                )
                for v in self.variables
            ),
            loss=None
            if actual.losses is None
            else FigureVerdict(
                name="losses", error=self.loss_error(actual.losses), limits=tolerances.loss_limits
            ),
            gradients=tuple(
                FigureVerdict(name=name, error=expected.error(norms), limits=expected.limits, place=place)
                for (name, place), norms in actual.gradient_norms.items()
                if (expected := tolerances.gradient_norms.get((name, place))) is not None
            ),
        )

    def may_be_rounding(self, verdict: Verdict, strategy_class: StrategyClass = "exact") -> bool:
        """True if more references may explain what a verdict calls wrong.

        Strategies of other classes need not equal the reference. Rounding flips a comparison, such as which
        input of a pool is the largest. A gradient then changes by a jump, which few references show.
        """
        narrow = self.tolerances.eps > FLOAT64_EPS
        return strategy_class == "exact" and narrow and verdict.is_slightly_wrong

    def require_finite(self, workload: str) -> None:
        """Refuse a reference that cannot prove anything.

        Args:
            workload: name of the workload, for the message.
        Raises:
            CaseError: `non-finite-loss`, if it has such a loss.
        """
        for step, loss in enumerate(self.losses):
            if not np.isfinite(loss):
                raise CaseError(
                    NON_FINITE_LOSS,
                    f"step {step}: the loss is not finite: {loss}; lower the learning rate or check the data",
                    stage="verify",
                    field=workload,
                )

    def errors(self, actual: Mapping[Copy, Array]) -> dict[str, float]:
        """Update error of every variable, of its worst copy; variables added by the strategy are left out."""
        errors = {v.name: -1.0 for v in self.variables}
        for (name, rank), value in actual.items():
            if name in errors:
                expected = self._expected(name, rank)
                # If the reference is not finite, an equally infinite result is no better.
                error = relative_error(value, expected, self.scales[name], difference_of_unequal)
                errors[name] = max(errors[name], error)
        return {name: inf if error < 0.0 else error for name, error in errors.items()}

    def loss_error(self, losses: Sequence[float]) -> float:
        """Largest difference of a step's loss, relative to the reference's largest."""
        ours, reference = np.asarray(losses, np.float64), np.asarray(self.losses, np.float64)
        return relative_error(ours, reference, largest_size(reference))

    def _expected(self, name: str, rank: int | None) -> Array:
        """Expected value: one for all replicas, or one for each; a sole copy is rank 0's."""
        for copy in ((name, rank), (name, None), (name, 0)):
            if copy in self.values:
                return self.values[copy]
        raise KeyError(name)


def _limits(floor: float, eps: float, n_steps: int, *, per_store: float = 0.0) -> Limits:
    """Limits after some steps; `per_store` is the error of one stored number."""
    of_steps = n_steps * (STEP_FACTOR * eps + STORES_PER_STEP * per_store)
    return Limits(floor=floor, tolerance=NOISE_FACTOR * floor + of_steps, eps=eps)


_Norms: TypeAlias = Mapping[Gradient, Sequence[float]]


def _gradient_norms(expected: _Norms, others: Sequence[_Norms], eps: float) -> dict[Gradient, GradientNorm]:
    norms = {gradient: norm for gradient, (norm,) in expected.items()}
    # Values that are small compared with all others may consist of rounding alone.
    least = GROUP_SHARE * max((norm for norm in norms.values() if isfinite(norm)), default=0.0)
    measured = {}
    for gradient, norm in norms.items():
        exact = GradientNorm(value=norm, scale=max(norm, least), limits=_EXACT)
        floor = exact.error([other[gradient][0] for other in others])
        measured[gradient] = replace(exact, limits=_limits(floor, eps, 1))
    return measured


def _moved(variables: Sequence[Checked], outcome: Outcome) -> dict[str, float]:
    """Variable → its movement, the largest of its copies; infinite if a copy is no longer finite.

    Forward state may start with infinities, such as a running minimum. Only its finite part counts.
    """
    kinds = {v.name: v.kind for v in variables}
    moved = dict.fromkeys(kinds, 0.0)
    for copy, end in outcome.values.items():
        if is_inexact(end):
            start = outcome.initial[copy]
            distance = difference_of_unequal(end, start)
            if distance == inf and kinds[copy[0]] == "state":
                is_finite = np.isfinite(end)
                distance = largest_difference(
                    end[is_finite], np.where(np.isfinite(start), start, 0)[is_finite]
                )
            moved[copy[0]] = max(moved[copy[0]], distance)
    return moved


def _stored(variables: Sequence[Checked], outcome: Outcome) -> dict[str, float]:
    """Variable → largest stored number of all its copies; 0 if one is not finite."""
    stored = dict.fromkeys((v.name for v in variables), 0.0)
    for copy, value in outcome.values.items():
        if is_inexact(value):
            anew = value[value != outcome.initial[copy]]
            stored[copy[0]] = max(stored[copy[0]], largest_size(anew))
    return {name: largest if isfinite(largest) else 0.0 for name, largest in stored.items()}


def _scales(
    variables: Sequence[Checked], moved: Mapping[str, float], values: Mapping[Copy, Array]
) -> dict[str, float]:
    """Variable → scale of its error: its movement, but at least a thousandth of a reference value.

    For trainables and slots, this value is the largest finite movement in their group. For forward state, it
    is its own largest number, because averages and counts have different units.
    """
    kinds = {v.name: v.kind for v in variables}
    largest: dict[str, float] = {}
    for v in variables:
        if v.kind != "state" and moved[v.name] < inf:
            largest[v.group] = max(largest.get(v.group, 0.0), moved[v.name])
    for (name, _), value in values.items():
        if kinds[name] == "state" and is_inexact(value):
            finite = value[np.isfinite(value)]
            largest[name] = max(largest.get(name, 0.0), largest_size(finite))
    return {
        v.name: max(moved[v.name], GROUP_SHARE * largest.get(v.name if v.kind == "state" else v.group, 0.0))
        for v in variables
    }


def returned(pairs: Iterable[tuple[Result, Array]]) -> tuple[Returned, ...]:
    """Results of all shards, in the order of the first shard's names."""
    by_name: dict[str, list[tuple[Result, Array]]] = {}
    for result, value in pairs:
        by_name.setdefault(result.name, []).append((result, np.asarray(value)))
    results = []
    for name, ranked in by_name.items():
        in_order = sorted(ranked, key=lambda pair: pair[0].rank)
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
    """One result of the last step, compared with the reference's.

    Only numbers and text are stored; arrays and complex numbers have only their shape and error.

    Attributes:
        shape: shape of all shards' values joined, if they can be, else of the first one's.
        value, reference_value: value for the global batch; None if there is none or it is not stored.
        error: largest error of a shard, as a fraction of the largest value; infinite for unequal integers or
            text.
    """

    name: str
    rule: ResultRule
    shape: tuple[int, ...]
    value: object
    reference_value: object
    per_shard: tuple[object, ...]
    error: float


def compared(own: Sequence[Returned], expected: Sequence[Returned]) -> tuple[ComparedResult, ...]:
    """Results of the last step and of the reference, in their order."""
    of_name = {scalar.name: scalar for scalar in expected}
    return tuple(_compared(scalar, of_name[scalar.name]) for scalar in own)


def _compared(own: Returned, expected: Returned) -> ComparedResult:
    value = own.reduced()
    pairs = zip(own.per_shard, expected.per_shard, strict=True)
    return ComparedResult(
        name=own.name,
        rule=own.rule,
        shape=(own.per_shard[0] if value is None else value).shape,
        value=_scalar(value),
        reference_value=_scalar(expected.reduced()),
        per_shard=tuple(_scalar(values) for values in own.per_shard),
        error=max(_result_error(shard, other) for shard, other in pairs),
    )


def _scalar(value: Array | None) -> object:
    if value is None or value.shape != () or np.iscomplexobj(value):
        return None
    scalar = value.item()
    return scalar.decode(errors="replace") if isinstance(scalar, bytes) else scalar


def _result_error(value: Array, expected: Array) -> float:
    if value.shape == expected.shape and np.array_equal(value, expected, equal_nan=is_inexact(expected)):
        return 0.0
    return relative_error(value, expected, largest_size(expected))
