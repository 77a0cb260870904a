"""A reference to compare states with: its errors, noise floors and tolerances as numbers; no TensorFlow."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TypeAlias

import numpy as np

from harness.verification.verdict import (
    FLOAT64_EPS,
    GradientVerdict,
    Limits,
    LossVerdict,
    VariableVerdict,
    Verdict,
)
from harness.worker.variable_parts import Array, Copy

Gradient: TypeAlias = tuple[str, int]
"""A captured gradient: its variable, and its place among the gradients of that variable."""

NOISE_FACTOR = 10.0
STEP_FACTOR = 64.0
# A step may store a variable twice: decayed, then updated.
STORES_PER_STEP = 2
GROUP_SHARE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A variable to compare.

    Attributes:
        group: what its error is scaled by if it hardly moved itself.
        eps: of its type; 0 where its numbers are not rounded.
    """

    name: str
    kind: str
    group: str
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a reference comes to.

    Attributes:
        values: its state after the last step.
        losses: of every step.
        gradient_norms: of the first step, as updates take them.
    """

    values: Mapping[Copy, Array]
    losses: Sequence[float]
    gradient_norms: Mapping[Gradient, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorm:
    """The norm of a gradient in the first step.

    Attributes:
        scale: what an error is relative to: itself, at least a thousandth of the largest.
        limits: what rounding explains of an error.
    """

    value: float
    scale: float
    limits: Limits

    def error(self, norms: Sequence[float]) -> float:
        apart = largest_difference(np.asarray(norms, np.float64), np.full(len(norms), self.value))
        if apart == 0.0:
            return 0.0
        return apart / self.scale if self.scale else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """A reference to compare states with.

    Attributes:
        values: the reference's state after the last step.
        losses: the reference's, of every step.
        scales: variable → how far it moved there, at least a thousandth of the farthest of its group, or, of
            forward state, of its own largest number.
        limits: variable → what rounding explains of its error; of no variable before it is measured.
        loss_limits: the same of the losses.
        unmoved: trainables that met a gradient and stayed where they were.
        gradient_norms: gradient → its norm in the first step, and what rounding explains of another one.
    """

    variables: tuple[Checked, ...]
    values: Mapping[Copy, Array]
    losses: tuple[float, ...]
    scales: Mapping[str, float]
    limits: Mapping[str, Limits]
    loss_limits: Limits
    unmoved: frozenset[str]
    gradient_norms: Mapping[Gradient, GradientNorm]

    @classmethod
    def of(
        cls,
        variables: Sequence[Checked],
        initial: Mapping[Copy, Array],
        reference: Outcome,
        others: Sequence[Outcome],
        *,
        with_gradient: Collection[str] = (),
        loss_eps: float,
        gradient_eps: float = FLOAT64_EPS,
    ) -> "Yardstick":
        """Take the measure of a reference.

        Args:
            initial: its state before the first step.
            others: outcomes that differ from it in rounding only; at least three.
            with_gradient: variables that met a gradient other than zero.
            loss_eps: of the type that losses are computed in.
            gradient_eps: of the coarsest type on the way to gradients.
        """
        n_steps = len(reference.losses)
        moved = _moved(variables, initial, reference.values)
        exact = Limits(floor=0.0, tolerance=0.0, eps=0.0)
        scales = _scales(variables, moved, reference.values)
        stored = _stored(variables, initial, reference.values)
        silent = cls(
            variables=tuple(variables),
            values=reference.values,
            losses=tuple(reference.losses),
            scales=scales,
            limits={},
            loss_limits=exact,
            unmoved=frozenset(
                v.name
                for v in variables
                if v.kind == "trainable" and v.name in with_gradient and moved[v.name] == 0.0
            ),
            gradient_norms=_gradient_norms(reference, others, gradient_eps),
        )
        errors = [silent.errors(other.values) for other in others]
        loss_floor = max(silent.loss_error(other.losses) for other in others)
        return replace(
            silent,
            limits={
                v.name: _limits(
                    max(by_name[v.name] for by_name in errors),
                    v.eps,
                    n_steps,
                    per_store=v.eps * (stored[v.name] / scales[v.name]) if stored[v.name] else 0.0,
                )
                for v in variables
            },
            loss_limits=_limits(loss_floor, loss_eps, n_steps, per_store=0.0),
        )

    @property
    def n_steps(self) -> int:
        return len(self.losses)

    def judge(
        self,
        actual: Mapping[Copy, Array],
        losses: Sequence[float] | None = None,
        gradient_norms: Mapping[Gradient, Sequence[float]] | None = None,
    ) -> Verdict:
        """Compare all copies of all variables with the reference.

        Args:
            losses: global losses of the steps on the way there; None compares states only.
            gradient_norms: of the first step, those of all copies; None where nobody looked.
        """
        errors = self.errors(actual)
        n_elements = {name: value.size for (name, _), value in self.values.items()}
        return Verdict(
            variables=tuple(
                VariableVerdict(
                    name=v.name,
                    kind=v.kind,
                    group=v.group,
                    n_elements=n_elements[v.name],
                    update_error=errors[v.name],
                    limits=self.limits[v.name],
                    unmoved=v.name in self.unmoved,
                    finite=self.scales[v.name] < inf,
                )
                for v in self.variables
            ),
            loss=None
            if losses is None
            else LossVerdict(error=self.loss_error(losses), limits=self.loss_limits),
            gradients=tuple(
                GradientVerdict(name=gradient[0], error=expected.error(norms), limits=expected.limits)
                for gradient, norms in (gradient_norms or {}).items()
                if (expected := self.gradient_norms.get(gradient)) is not None and expected.limits.decide
            ),
        )

    def errors(self, actual: Mapping[Copy, Array]) -> dict[str, float]:
        names = {v.name: None for v in self.variables}
        worst: dict[str, float] = {}
        for (name, rank), value in actual.items():
            if name in names:
                error = self._error(name, value, self._expected(name, rank))
                worst[name] = max(worst.get(name, 0.0), error)
        return {name: worst.get(name, inf) for name in names}

    def loss_error(self, losses: Sequence[float]) -> float:
        ours, reference = np.asarray(losses, np.float64), np.asarray(self.losses, np.float64)
        if ours.shape != reference.shape:
            return inf
        difference = largest_difference(ours, reference)
        if difference == 0.0:
            return 0.0
        scale = largest_difference(reference, np.zeros_like(reference))
        return difference / scale if isfinite(difference) and 0.0 < scale < inf else inf

    def _expected(self, name: str, rank: int | None) -> Array:
        """The reference has a value for all replicas, or one for each; a lone replica's copy is rank 0's."""
        for copy in ((name, rank), (name, None), (name, 0)):
            if copy in self.values:
                return self.values[copy]
        raise KeyError(name)

    def _error(self, name: str, value: Array, expected: Array) -> float:
        if value.shape != expected.shape:
            return inf
        if not is_inexact(expected):
            return 0.0 if np.array_equal(value, expected) else inf
        difference = _unlike(value, expected)
        # Where the reference goes out of the numbers, what is wrong in the same way is no better.
        if difference == inf or self.scales[name] == inf:
            return inf
        if difference == 0.0:
            return 0.0
        return difference / self.scales[name] if self.scales[name] else inf


def _limits(floor: float, eps: float, n_steps: int, *, per_store: float) -> Limits:
    """Limits after some steps.

    Args:
        per_store: the error of a number that was stored as the next one to what the reference has.
    """
    of_steps = n_steps * (STEP_FACTOR * eps + STORES_PER_STEP * per_store)
    return Limits(floor=floor, tolerance=NOISE_FACTOR * floor + of_steps, eps=eps)


def _gradient_norms(
    reference: Outcome, others: Sequence[Outcome], eps: float
) -> dict[Gradient, GradientNorm]:
    norms = reference.gradient_norms
    # What is small beside all others may be nothing but rounding.
    least = GROUP_SHARE * max((norm for norm in norms.values() if isfinite(norm)), default=0.0)
    measured = {}
    for gradient, norm in norms.items():
        exact = Limits(floor=0.0, tolerance=0.0, eps=eps)
        silent = GradientNorm(value=norm, scale=max(norm, least), limits=exact)
        floor = silent.error([other.gradient_norms[gradient] for other in others])
        measured[gradient] = replace(silent, limits=_limits(floor, eps, 1, per_store=0.0))
    return measured


def _moved(
    variables: Sequence[Checked], initial: Mapping[Copy, Array], values: Mapping[Copy, Array]
) -> dict[str, float]:
    """Variable → how far it went, the farthest of its copies; infinite where it went out of the numbers.

    Forward state may: a running minimum begins with an infinity. Of that, what is finite counts.
    """
    kinds = {v.name: v.kind for v in variables}
    moved = dict.fromkeys(kinds, 0.0)
    for copy, end in values.items():
        if is_inexact(end):
            start = initial[copy]
            distance = _unlike(end, start)
            if distance == inf and kinds[copy[0]] == "state":
                is_finite = np.isfinite(end)
                distance = largest_difference(
                    end[is_finite], np.where(np.isfinite(start), start, 0)[is_finite]
                )
            moved[copy[0]] = max(moved[copy[0]], distance)
    return moved


def _stored(
    variables: Sequence[Checked], initial: Mapping[Copy, Array], values: Mapping[Copy, Array]
) -> dict[str, float]:
    """Variable → the largest number that was stored anew, of all its copies; 0 where one is not finite."""
    stored = dict.fromkeys((v.name for v in variables), 0.0)
    for copy, value in values.items():
        if is_inexact(value):
            anew = value[value != initial[copy]]
            stored[copy[0]] = max(stored[copy[0]], largest_difference(anew, np.zeros_like(anew)))
    return {name: largest if isfinite(largest) else 0.0 for name, largest in stored.items()}


def _scales(
    variables: Sequence[Checked], moved: Mapping[str, float], values: Mapping[Copy, Array]
) -> dict[str, float]:
    """Variable → what its error is relative to: how far it moved, at least a thousandth of what follows.

    Of trainables and slots, the farthest of their group that stays in the numbers. Forward state is no group,
    for averages stand beside counts, which have another unit: its own largest number.
    """
    kinds = {v.name: v.kind for v in variables}
    largest: dict[str, float] = {}
    for v in variables:
        if v.kind != "state" and moved[v.name] < inf:
            largest[v.group] = max(largest.get(v.group, 0.0), moved[v.name])
    for (name, _), value in values.items():
        if kinds[name] == "state" and is_inexact(value):
            finite = value[np.isfinite(value)]
            largest[name] = max(largest.get(name, 0.0), largest_difference(finite, np.zeros_like(finite)))
    return {
        v.name: max(moved[v.name], GROUP_SHARE * largest.get(v.name if v.kind == "state" else v.group, 0.0))
        for v in variables
    }


def _unlike(value: Array, other: Array) -> float:
    difference = largest_difference(value, other)
    if difference < inf:
        return difference
    differs = value != other
    return largest_difference(value[differs], other[differs])


def largest_difference(value: Array, other: Array) -> float:
    """The largest absolute difference; infinite when anything is not finite."""
    if value.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(widened(value) - widened(other))))
    return difference if np.isfinite(difference) else inf


def widened(value: Array) -> Array:
    """The value in float64, or complex128 if it is complex; itself where it is that already."""
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64, copy=False)


def is_inexact(value: Array) -> bool:
    """Whether its numbers are rounded: floating or complex."""
    # bfloat16 is a type of ml_dtypes, which NumPy does not count among its own floating types.
    return bool(np.issubdtype(value.dtype, np.inexact)) or value.dtype.name == "bfloat16"
