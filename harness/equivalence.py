"""Is a state the reference's? Errors, noise floor and tolerance as numbers; no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]

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
    """The worst update error among a variable's copies; infinite where a number is not finite or an integer differs."""

    name: str
    kind: str
    update_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """The verdict.

    Attributes:
        tolerance: 10 × noise_floor + 64 × steps × eps of the type computed in.
    """

    equivalent: bool
    max_update_error: float
    noise_floor: float
    tolerance: float
    variables: tuple[VariableError, ...]


def judge(
    variables: Sequence[Checked],
    initial: Mapping[Copy, Array],
    reference: Mapping[Copy, Array],
    others: Sequence[Mapping[Copy, Array]],
    actual: Mapping[Copy, Array],
    *,
    n_steps: int,
    eps: float,
) -> Equivalence:
    """Compare a state with the reference's.

    Args:
        initial: the reference's values before the first step, by (variable, None) or, for what each replica has for
            itself, (variable, rank).
        others: references that differ in rounding only.
        actual: all copies of all variables.
        eps: of the type computed in.
    """
    moved = _Moved(variables, initial, reference)
    noise = max(max(e.update_error for e in moved.errors(other)) for other in others)
    errors = moved.errors(actual)
    tolerance = NOISE_FACTOR * noise + STEP_FACTOR * n_steps * eps
    worst = max(error.update_error for error in errors)
    return Equivalence(
        equivalent=bool(worst <= tolerance),
        max_update_error=worst,
        noise_floor=noise,
        tolerance=tolerance,
        variables=errors,
    )


class _Moved:
    """How far each variable moved in the reference, which scales how far another state may be from it."""

    def __init__(
        self, variables: Sequence[Checked], initial: Mapping[Copy, Array], reference: Mapping[Copy, Array]
    ) -> None:
        self._variables = {v.name: v for v in variables}
        self._reference = reference
        moved: dict[str, float] = {}
        groups: dict[str, float] = {}
        for (name, _), value in reference.items():
            own = _largest(value, initial[name, _])
            moved[name] = max(moved.get(name, 0.0), own)
            group = self._variables[name].group
            groups[group] = max(groups.get(group, 0.0), own)
        self._scale = {
            name: max(own, GROUP_SHARE * groups[self._variables[name].group]) for name, own in moved.items()
        }

    def errors(self, actual: Mapping[Copy, Array]) -> tuple[VariableError, ...]:
        """The update error of every variable, worst copy each."""
        worst = dict.fromkeys(self._variables, 0.0)
        missing = set(self._variables)
        for (name, rank), value in actual.items():
            worst[name] = max(worst[name], self._error(name, value, self._expected(name, rank)))
            missing.discard(name)
        worst |= dict.fromkeys(missing, np.inf)
        return tuple(
            VariableError(name=v.name, kind=v.kind, update_error=worst[v.name])
            for v in self._variables.values()
        )

    def _expected(self, name: str, rank: int | None) -> Array:
        """The reference has a value for all replicas, or one for each; a lone replica's copy is rank 0's."""
        for copy in ((name, rank), (name, None), (name, 0)):
            if copy in self._reference:
                return self._reference[copy]
        raise KeyError(name)

    def _error(self, name: str, value: Array, expected: Array) -> float:
        if value.shape != expected.shape:
            return float("inf")
        if not np.issubdtype(expected.dtype, np.inexact):
            return 0.0 if np.array_equal(value, expected) else float("inf")
        if not (np.isfinite(value).all() and np.isfinite(expected).all()):
            return float("inf")
        difference = _largest(value, expected)
        if difference == 0.0:
            return 0.0
        return difference / self._scale[name] if self._scale[name] > 0 else float("inf")


def _largest(value: Array, other: Array) -> float:
    if value.size == 0 or not np.issubdtype(value.dtype, np.inexact):
        return 0.0
    return float(np.max(np.abs(value.astype(np.float64) - other.astype(np.float64))))
