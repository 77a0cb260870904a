"""Is a state the reference's? Errors, noise floor and tolerance as numbers; no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]
"""A variable's name, and the rank that has this copy for itself; None where there is one for all replicas."""

NOISE_FACTOR = 10.0
STEP_FACTOR = 64.0
GROUP_SHARE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A variable to compare: `group` is what its error is scaled by if it hardly moved itself."""

    name: str
    kind: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableError:
    """The worst update error among a variable's copies; infinite where one is missing or not finite."""

    name: str
    kind: str
    update_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a state is the reference's.

    Attributes:
        tolerance: 10 noise floors + 64 steps times eps of the type computed in.
    """

    equivalent: bool
    max_update_error: float
    noise_floor: float
    tolerance: float
    variables: tuple[VariableError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """A reference to compare states with.

    Attributes:
        values: the reference's state after the last step.
        scales: variable → how far it moved there, at least a thousandth of the farthest of its group.
        noise_floor: the largest error among references that differ in rounding only.
        eps: of the type computed in.
    """

    variables: tuple[Checked, ...]
    values: Mapping[Copy, Array]
    scales: Mapping[str, float]
    noise_floor: float
    n_steps: int
    eps: float

    @classmethod
    def of(
        cls,
        variables: Sequence[Checked],
        initial: Mapping[Copy, Array],
        values: Mapping[Copy, Array],
        others: Sequence[Mapping[Copy, Array]],
        *,
        n_steps: int,
        eps: float,
    ) -> "Yardstick":
        """Take the measure of a reference.

        Args:
            initial: its state before the first step. values: after the last.
            others: the same of references that differ in rounding only; at least three.
        """
        silent = cls(
            variables=tuple(variables),
            values=values,
            scales=_scales(variables, initial, values),
            noise_floor=0.0,
            n_steps=n_steps,
            eps=eps,
        )
        noise = max(error.update_error for other in others for error in silent.errors(other))
        return replace(silent, noise_floor=noise)

    @property
    def tolerance(self) -> float:
        """The largest error that rounding explains."""
        return NOISE_FACTOR * self.noise_floor + STEP_FACTOR * self.n_steps * self.eps

    def judge(self, actual: Mapping[Copy, Array]) -> Verdict:
        """Compare all copies of all variables with the reference."""
        errors = self.errors(actual)
        worst = max(error.update_error for error in errors)
        return Verdict(
            equivalent=bool(worst <= self.tolerance) and bool(np.isfinite(self.tolerance)),
            max_update_error=worst,
            noise_floor=self.noise_floor,
            tolerance=self.tolerance,
            variables=errors,
        )

    def errors(self, actual: Mapping[Copy, Array]) -> tuple[VariableError, ...]:
        """The update error of every variable, of its worst copy; what a strategy added is not compared."""
        worst: dict[str, float] = {}
        known = {v.name for v in self.variables}
        for (name, rank), value in actual.items():
            if name not in known:
                continue
            error = self._error(name, value, self._expected(name, rank))
            worst[name] = max(worst.get(name, 0.0), error)
        return tuple(
            VariableError(name=v.name, kind=v.kind, update_error=worst.get(v.name, float("inf")))
            for v in self.variables
        )

    def _expected(self, name: str, rank: int | None) -> Array:
        """The reference has a value for all replicas, or one for each; a lone replica's copy is rank 0's."""
        for copy in ((name, rank), (name, None), (name, 0)):
            if copy in self.values:
                return self.values[copy]
        raise KeyError(name)

    def _error(self, name: str, value: Array, expected: Array) -> float:
        if value.shape != expected.shape:
            return float("inf")
        if not is_inexact(expected):
            return 0.0 if np.array_equal(value, expected) else float("inf")
        difference = largest_difference(value, expected)
        if difference == 0.0:
            return 0.0
        # Where the reference is not finite its scale is not either, and their quotient would hide it.
        if difference == float("inf") or self.scales[name] == 0.0:
            return float("inf")
        return difference / self.scales[name]


def _scales(
    variables: Sequence[Checked], initial: Mapping[Copy, Array], values: Mapping[Copy, Array]
) -> dict[str, float]:
    group_of = {v.name: v.group for v in variables}
    moved = dict.fromkeys(group_of, 0.0)
    farthest = dict.fromkeys(group_of.values(), 0.0)
    for copy, value in values.items():
        own = largest_difference(value, initial[copy]) if is_inexact(value) else 0.0
        moved[copy[0]] = max(moved[copy[0]], own)
        farthest[group_of[copy[0]]] = max(farthest[group_of[copy[0]]], own)
    return {name: max(own, GROUP_SHARE * farthest[group_of[name]]) for name, own in moved.items()}


def largest_difference(value: Array, other: Array) -> float:
    """The largest absolute difference; infinite when anything is not finite."""
    if value.size == 0:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(value) else np.float64
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(value.astype(wide) - other.astype(wide))))
    return difference if np.isfinite(difference) else float("inf")


def is_inexact(value: Array) -> bool:
    """Whether its numbers are rounded: floating or complex."""
    # bfloat16 is a type of ml_dtypes, which NumPy does not count among its own floating types.
    return bool(np.issubdtype(value.dtype, np.inexact)) or value.dtype.name == "bfloat16"
