"""Verdict of an equivalence check: per variable, for the losses, and overall."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

DECIDABLE_TOLERANCE = 0.1
DECIDABLE_SHARE = 0.95
BEYOND_ROUNDING = 1e3
"""Multiples of a tolerance beyond any rounding error."""
FLOAT64_EPS = 2.0**-52
MOST_BY_A_JUMP = 1.0
"""Largest error for which more references are worth their time (decision 0105)."""
_N_NAMED = 3
_IN_FLOAT64 = "verify with --dtype float64"

Kind = Literal["trainable", "slot", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Error explained by rounding: `floor` between references, `tolerance` in all, `eps` of the dtype."""

    floor: float
    tolerance: float
    eps: float

    @property
    def decide(self) -> bool:
        return self.tolerance <= DECIDABLE_TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableVerdict:
    """One variable, compared with the reference's.

    Attributes:
        group: `trainable`, or the kind of slot or state.
        n_elements: number of elements of the whole variable.
        update_error: largest error of its copies; infinite if one is missing, misshapen or not finite.
        unmoved: True for a trainable with a nonzero gradient that did not move in the reference.
        finite: True if the reference's value is finite.
    """

    name: str
    kind: str
    group: str
    n_elements: int
    update_error: float
    limits: Limits
    unmoved: bool = False
    finite: bool = True

    @property
    def decidable(self) -> bool:
        return self.limits.decide and not self.unmoved

    @property
    def wrong(self) -> bool:
        """True if it differs from the reference's by more than rounding explains."""
        # A variable expected to stay in place proves nothing by staying, but is wrong if it moves.
        if self.limits.decide:
            return not self.update_error <= self.limits.tolerance
        # Rounding may move it, but only so far, and not to infinity if the reference's is finite.
        if not isfinite(self.update_error):
            return isfinite(self.limits.floor)
        return self.update_error > BEYOND_ROUNDING * self.limits.tolerance

    @property
    def use_of_tolerance(self) -> float:
        if self.update_error == 0.0:
            return 0.0
        return self.update_error / self.limits.tolerance if self.limits.tolerance else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureVerdict:
    """A figure, compared with the reference's, relative to it.

    Attributes:
        name: `losses` for those of all steps, or a variable for its gradient's norm in the first step.
        place: number of the gradient among those of the variable.
    """

    name: str
    error: float
    limits: Limits
    place: int = 0

    @property
    def wrong(self) -> bool:
        return not self.error <= self.limits.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on variables and losses, compared with the reference's.

    Attributes:
        loss: None if no losses were compared.
        gradients: compared gradient norms; those with a tolerance above a tenth are not judged.
        in_doubt: names of what seemed wrong by fewer references.
    """

    variables: tuple[VariableVerdict, ...]
    loss: FigureVerdict | None = None
    gradients: tuple[FigureVerdict, ...] = ()
    in_doubt: frozenset[str] = frozenset()

    @property
    def equivalent(self) -> bool | None:
        """False if anything is wrong, None if too little of the model can be judged, else True."""
        if any(v.wrong for v in self.variables) or (self.loss is not None and self.loss.wrong):
            return False
        if any(gradient.wrong for gradient in self._judged_gradients):
            return False
        return None if self._too_little() or self._hidden else True

    @property
    def wrong(self) -> tuple[str, ...]:
        variables = (v.name for v in self.variables if v.wrong)
        return tuple(dict.fromkeys((*variables, *(g.name for g in self._judged_gradients if g.wrong))))

    @property
    def is_slightly_wrong(self) -> bool:
        """True if it is false, but by so little that more references may explain it."""
        figures = [*self._judged_gradients, *([] if self.loss is None else [self.loss])]
        errors = [v.update_error for v in self.variables if v.wrong] + [f.error for f in figures if f.wrong]
        return self.equivalent is False and all(error <= MOST_BY_A_JUMP for error in errors)

    def is_explained_by(self, again: "Verdict") -> bool:
        """True if all that is wrong is within another verdict's tolerances, also where those decide nothing.

        Args:
            again: verdict on the same outcome by wider tolerances.
        """
        variables = zip(self.variables, again.variables, strict=True)
        gradients = zip(self.gradients, again.gradients, strict=True)
        wrong = [(v.update_error, wide.limits) for v, wide in variables if v.wrong]
        wrong += [(g.error, wide.limits) for g, wide in gradients if g.limits.decide and g.wrong]
        if self.loss is not None and again.loss is not None and self.loss.wrong:
            wrong.append((self.loss.error, again.loss.limits))
        return all(error <= limits.tolerance < inf for error, limits in wrong)

    @property
    def undecidable(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.variables if not v.decidable)

    @property
    def by_error(self) -> list[VariableVerdict]:
        """Decidable variables by share of tolerance used, then by tolerance, largest first."""
        decidable = [v for v in self.variables if v.decidable]
        return sorted(decidable, key=lambda v: (v.use_of_tolerance, v.limits.tolerance), reverse=True)

    @property
    def nearest(self) -> VariableVerdict | None:
        return next(iter(self.by_error), None)

    @property
    def nearest_gradient(self) -> FigureVerdict | None:
        return max(self._judged_gradients, key=lambda g: g.error / g.limits.tolerance, default=None)

    @property
    def _hidden(self) -> list[str]:
        """Names in doubt that these tolerances cannot decide."""
        undecided = {v.name for v in self.variables if not v.decidable}
        undecided |= {gradient.name for gradient in self.gradients if not gradient.limits.decide}
        return sorted(self.in_doubt & undecided)

    @property
    def _judged_gradients(self) -> list[FigureVerdict]:
        return [gradient for gradient in self.gradients if gradient.limits.decide]

    @property
    def tolerance(self) -> float:
        return max((v.limits.tolerance for v in self.variables if v.decidable), default=0.0)

    @property
    def reason(self) -> str | None:
        wrong = [v for v in self.variables if v.wrong]
        if wrong:
            worst = max(wrong, key=lambda v: (v.use_of_tolerance, v.update_error))
            return f"{worst.name} is off by {_error(worst.update_error, worst.limits)}"
        if self.loss is not None and self.loss.wrong:
            return f"the losses are off by {_error(self.loss.error, self.loss.limits)}"
        gradient = self.nearest_gradient
        if gradient is not None and gradient.wrong:
            return (
                f"the norm of the first gradient of {gradient.name} is off by "
                f"{_error(gradient.error, gradient.limits)}; gradient clipping or a sign update hides this "
                "in the weights"
            )
        lacking = self._too_little()
        if not lacking:
            hidden = self._hidden
            return f"rounding may explain the error of {named(hidden)} ({_IN_FLOAT64})" if hidden else None
        group, share = min(lacking.items(), key=lambda item: item[1])
        what = "trainables" if group == "trainable" else f"{group} slots"
        return f"only {100 * share:.3g} % of the elements of the {what} can be judged: {self.why_undecidable}"

    @property
    def why_undecidable(self) -> str | None:
        unmoved = [v for v in self.variables if v.unmoved]
        infinite = [v for v in self.variables if not v.finite]
        noisy = [v for v in self.variables if not v.decidable and not v.unmoved and v.finite]
        causes = []
        if infinite:
            causes.append(
                f"{named([v.name for v in infinite])} holds numbers that are not finite after the "
                "reference's own steps (lower the learning rate, or check the data)"
            )
        if unmoved:
            causes.append(
                f"{named([v.name for v in unmoved])} did not move although the gradient is not zero (a loss "
                "scale that overflows does this; compare more steps)"
            )
        if noisy:
            narrow = any(v.limits.eps > FLOAT64_EPS for v in noisy)
            way_out = _IN_FLOAT64 if narrow else "compare fewer steps"
            causes.append(
                f"rounding alone may move {named([v.name for v in noisy])} by more than "
                f"{100 * DECIDABLE_TOLERANCE:.0f} % of the update ({way_out})"
            )
        return "; ".join(causes) or None

    def _too_little(self) -> dict[str, float]:
        """Group → share of its elements that can be judged, if too small."""
        compared: dict[str, list[VariableVerdict]] = {}
        for v in self.variables:
            if v.kind != "state":
                compared.setdefault(v.group, []).append(v)
        shares = {
            group: sum(v.n_elements for v in members if v.decidable)
            / max(1, sum(v.n_elements for v in members))
            for group, members in compared.items()
            if any(v.n_elements for v in members)
        }
        return {group: share for group, share in shares.items() if share < DECIDABLE_SHARE}


def _error(error: float, limits: Limits) -> str:
    return f"{error:.2g}, the tolerance is {limits.tolerance:.2g}"


def named(names: Sequence[str]) -> str:
    """The first few names, and the number of others."""
    named = ", ".join(names[:_N_NAMED])
    more = len(names) - _N_NAMED
    return f"{named} and {more} more" if more > 0 else named


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFigure:
    """Loss of a compressed gradient in one step, and its bound, both L2 norms.

    Attributes:
        where: step, gradient and measured quantity.
    """

    where: str
    error: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVerdict:
    """Verdict on a compressed strategy by its bounds.

    Attributes:
        within: None if rounding hides too much.
        undecidable: names of variables hidden by rounding, with any verdict.
        reason: reason why it is not True.
        worst: loss that uses most of its bound; None if no loss has a bound above zero.
    """

    within: bool | None
    reason: str | None
    undecidable: tuple[str, ...] = ()
    worst: BoundFigure | None = None
