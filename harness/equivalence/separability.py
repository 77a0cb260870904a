"""Do the shards of a batch mean what the step means on the whole of it? Numbers; no TensorFlow.

Shards stand for the whole batch if what they contribute, combined as the loss is (their mean by examples, or
their sum), is what the step computes on all examples at once. Else the examples of a batch are coupled
(contrastive losses, statistics of the batch, weighted means), and strategies train on something else.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from harness.equivalence.batch_totals import Differences
from harness.equivalence.yardstick import NOISE_FACTOR
from harness.errors import UsageError
from strategies.ir.train_graph import Reduction

LEAST_TOLERANCE = 1e-9
LARGEST_TOLERANCE = 1e-5
"""Above it rounding may hide a coupling: the mildest that was measured is 4.7e-5."""

_COUPLED = (
    "examples of a batch are coupled, as in contrastive losses, statistics of a batch and weighted means, so "
    "that what they add depends on who is in their shard; no strategy undoes that: train on one replica, or "
    "take the mean over shards for what you want"
)
_UNKNOWN = "it is not known whether shards mean what the step means on the whole batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Separability:
    """Whether shards mean what the step means on the whole batch.

    Attributes:
        separable: null where that cannot be told.
        explanation: one sentence that says why, and what follows.
        gradient_difference: the largest, of `variable`; None where nothing was compared, as what follows.
        state_difference: the largest, of `state_variable`, or None where there is no forward state.
    """

    separable: bool | None
    explanation: str
    gradient_difference: float | None = None
    variable: str | None = None
    loss_difference: float | None = None
    state_difference: float | None = None
    state_variable: str | None = None


class Noise:
    """What rounding makes of the whole batch, measured for as long as more of it could change an answer.

    Args:
        measurements: differences of the whole batch from itself, rounded in one way after the other; at least
            one.
    """

    def __init__(self, measurements: Iterable[Differences]) -> None:
        self._left = iter(measurements)
        self._largest: Differences | None = None

    def explains(self, differences: Differences) -> bool | None:
        """Whether it explains all differences; None if it may explain what a coupling makes as well."""
        if self._largest is None:
            if _within(differences, None):
                return True
            self._largest = next(self._left)
        while True:
            answer = _within(differences, self._largest)
            if answer is _within(differences, self._largest, factor=10 * NOISE_FACTOR):
                return answer
            another = next(self._left, None)
            if another is None:
                return answer
            self._largest = Differences.largest_of([self._largest, another])


def judge(
    declared: Differences,
    noise: Noise,
    otherwise: Callable[[], Differences],
    ways_out: Mapping[str, Callable[[], Differences]],
    *,
    reduction: Reduction,
    n_shards: int,
) -> Separability:
    """Compare what shards make of a batch with what the step makes of the whole.

    Args:
        declared: differences from the whole batch where shards are combined by `reduction`.
        otherwise: differences where shards are combined in the other way.
        ways_out: what a person can do → the differences that are left then.
        reduction: how the loss is said to come of the examples' losses.
    Raises:
        UsageError: it comes of them in the other way.
    """
    agrees = noise.explains(declared)
    if agrees is not False:
        return _separable(declared, reduction, n_shards) if agrees else _hidden(declared, n_shards)
    if noise.explains(otherwise()):
        raise UsageError(_misdeclared(reduction, n_shards), field="train_step")
    way_out = next((text for text, left in ways_out.items() if noise.explains(left())), None)
    return _coupled(declared, reduction, n_shards, way_out)


def unknown(reason: str) -> Separability:
    """No answer.

    Args:
        reason: why.
    """
    return Separability(separable=None, explanation=f"{_UNKNOWN}: {reason}")


def _within(
    differences: Differences, floors: Differences | None, factor: float = NOISE_FACTOR
) -> bool | None:
    """As `Noise.explains`, for what was measured so far.

    Forward state of which rounding leaves nothing (the mean of what is normalised already) says nothing.
    """
    noise = {} if floors is None else floors.by_name()
    hidden = False
    for (kind, name), value in differences.by_name().items():
        tolerance = max(LEAST_TOLERANCE, factor * noise.get((kind, name), 0.0))
        if not value <= tolerance:
            return False
        hidden |= kind != "state" and value > LARGEST_TOLERANCE
    return None if hidden else True


def _separable(differences: Differences, reduction: Reduction, n_shards: int) -> Separability:
    largest = max(differences.by_name().values())
    name, of_tally = differences.worst_tally()
    beside = f"; {name}, which is only added to, differs, for each shard adds its own"
    return _of(
        differences,
        separable=True,
        explanation=f"the {reduction} over {n_shards} shards is what the step computes on the whole batch: "
        f"loss, gradients and forward state differ by {largest:.1e} at most"
        + (beside if of_tally > LEAST_TOLERANCE else ""),
    )


def _hidden(differences: Differences, n_shards: int) -> Separability:
    name, difference = differences.worst_gradient()
    return _of(
        differences,
        separable=None,
        explanation=f"{_UNKNOWN}: between it and its {n_shards} shards the gradient of {name} differs by "
        f"{difference:.1e}, and rounding alone makes as much of it",
    )


def _coupled(
    differences: Differences, reduction: Reduction, n_shards: int, way_out: str | None
) -> Separability:
    name, difference = differences.worst_gradient()
    state, of_state = differences.worst_state()
    if max(differences.loss, difference) <= LEAST_TOLERANCE:
        return _of(
            differences,
            separable=False,
            explanation=f"loss and gradients of {n_shards} shards are those of the whole batch, but forward "
            f"state {state}, which the step reads, differs by {of_state:.1e}, and so will later steps: each "
            "shard moves it, as a counter that counts passes; move it by examples, or with the update",
        )
    beside = f", forward state {state} by {of_state:.1e}" if of_state > LEAST_TOLERANCE else ""
    return _of(
        differences,
        separable=False,
        explanation=f"strategies train on the {reduction} over {n_shards} shards, which is not what the step "
        f"computes on the whole batch: the gradient of {name} differs by {difference:.1e}, the loss by "
        f"{differences.loss:.1e}{beside}, each relative to its own size; {way_out or _COUPLED}",
    )


def _of(differences: Differences, *, separable: bool | None, explanation: str) -> Separability:
    variable, gradient = differences.worst_gradient()
    state_variable, state = differences.worst_state()
    return Separability(
        separable=separable,
        explanation=explanation,
        gradient_difference=gradient,
        variable=variable,
        loss_difference=differences.loss,
        state_difference=state if differences.state else None,
        state_variable=state_variable,
    )


def _misdeclared(declared: Reduction, n_shards: int) -> str:
    if declared == "mean":
        return (
            f"the loss must be a mean over the examples of a batch, got a sum: those of {n_shards} shards "
            'add up to that of the whole batch; give it as a TrainStep(reduction="sum"), or divide by the '
            "number of examples"
        )
    return (
        f'TrainStep(reduction="sum") needs a loss that adds up over examples, got their mean: the mean over '
        f"{n_shards} shards is that of the whole batch; drop reduction"
    )
