"""Separability: shards of a batch compared with the whole of it.

Shards represent the whole batch if their contributions, combined as the loss is (their mean by examples, or
their sum), equal the result of the step on all examples at once. Else the examples of a batch are coupled
(contrastive losses, statistics of the batch, weighted means), and strategies train on something else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from harness.errors import UsageError
from harness.verification.differences import GROUP_SHARE, NOISE_FACTOR, largest_size, relative_error, widened
from harness.worker.variable_parts import Array
from strategies.ir.train_graph import Reduction
from strategies.topology import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Value that crosses one boundary: a gradient, or the new value of forward state.

    Attributes:
        rows: row ids of a sparse gradient; None for a dense one.
    """

    variable: str
    values: Array
    rows: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Results of forward and backward on a batch, as a whole or of all its shards together.

    Attributes:
        gradients: gradients in the order of the step's boundaries, as are `state` and `tallies`.
        tallies: amounts added to forward state that the step itself never reads, such as a metric's.
    """

    loss: float
    gradients: tuple[Crossing, ...]
    state: tuple[Crossing, ...] = ()
    tallies: tuple[Crossing, ...] = ()

    def is_finite(self) -> bool:
        crossings = (*self.gradients, *self.state)
        return isfinite(self.loss) and all(isfinite(largest_size(c.values)) for c in crossings)

    @classmethod
    def of_one_shard(cls, few: "Totals", n_few: int, many: "Totals", n_many: int) -> "Totals":
        """Extrapolate sums over fewer and over more shards to one shard, if a part of each shard is the same.

        Such a part (a regularisation) counts once for each shard, so that totals are linear in their number.
        """
        of_many = (1 - n_few) / (n_many - n_few)
        of_few = 1 - of_many
        return cls(
            loss=of_few * few.loss + of_many * many.loss,
            gradients=tuple(
                _weighted(a, of_few, b, of_many) for a, b in zip(few.gradients, many.gradients, strict=True)
            ),
            state=few.state,
            tallies=few.tallies,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences of other totals from the whole batch's, each relative to the latter.

    Attributes:
        gradients: trainable → largest difference. state: forward state → the same. tallies: the same for
            state that the step never reads, which reports progress and affects nothing.
    """

    loss: float
    gradients: Mapping[str, float]
    state: Mapping[str, float]
    tallies: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, whole: Totals, other: Totals) -> "Differences":
        pairs = [_dense(*pair) for pair in zip(whole.gradients, other.gradients, strict=True)]
        largest = [largest_size(wanted) for wanted, _ in pairs]
        least = GROUP_SHARE * max(largest, default=0.0)
        gradients: dict[str, float] = {}
        for crossing, (wanted, got), own in zip(whole.gradients, pairs, largest, strict=True):
            difference = relative_error(got, wanted, max(own, least))
            gradients[crossing.variable] = max(difference, gradients.get(crossing.variable, 0.0))
        return cls(
            loss=relative_error(np.asarray(other.loss), np.asarray(whole.loss), abs(whole.loss)),
            gradients=gradients,
            state=_of_own_size(whole.state, other.state),
            tallies=_of_own_size(whole.tallies, other.tallies),
        )

    @classmethod
    def largest_of(cls, several: Sequence["Differences"]) -> "Differences":
        first = several[0]
        return cls(
            loss=max(differences.loss for differences in several),
            gradients={
                name: max(differences.gradients[name] for differences in several) for name in first.gradients
            },
            state={name: max(differences.state[name] for differences in several) for name in first.state},
        )

    def by_name(self) -> dict[tuple[str, str], float]:
        return {
            ("loss", ""): self.loss,
            **{("gradient", name): value for name, value in self.gradients.items()},
            **{("state", name): value for name, value in self.state.items()},
        }


def _worst(differences: Mapping[str, float]) -> tuple[str | None, float]:
    return max(differences.items(), key=lambda item: item[1], default=(None, 0.0))


def _of_own_size(whole: Sequence[Crossing], other: Sequence[Crossing]) -> dict[str, float]:
    differences: dict[str, float] = {}
    for mine, theirs in zip(whole, other, strict=True):
        difference = relative_error(theirs.values, mine.values, largest_size(mine.values))
        differences[mine.variable] = max(difference, differences.get(mine.variable, 0.0))
    return differences


def _weighted(a: Crossing, of_a: float, b: Crossing, of_b: float) -> Crossing:
    if a.rows is None or b.rows is None:
        return Crossing(variable=a.variable, values=of_a * a.values + of_b * b.values)
    return Crossing(
        variable=a.variable,
        values=np.concatenate([of_a * a.values, of_b * b.values]),
        rows=np.concatenate([a.rows, b.rows]),
    )


def _dense(whole: Crossing, other: Crossing) -> tuple[Array, Array]:
    """Both gradients on the union of their rows; other rows are zero in both."""
    if whole.rows is None or other.rows is None:
        return whole.values, other.values
    rows, places = np.unique(np.concatenate([whole.rows, other.rows]), return_inverse=True)
    gradients = []
    for crossing, own in ((whole, places[: len(whole.rows)]), (other, places[len(whole.rows) :])):
        dense = np.zeros((len(rows), *crossing.values.shape[1:]), widened(crossing.values[:0]).dtype)
        np.add.at(dense, own, crossing.values)
        gradients.append(dense)
    return gradients[0], gradients[1]


LEAST_TOLERANCE = 1e-9
LARGEST_TOLERANCE = 1e-5
"""Largest rounding noise that cannot hide a coupling; the mildest coupling measured was 4.7e-5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """Cause of a difference between shards and the whole batch, and its remedy."""

    cause: str
    remedy: str


_COUPLED = WayOut(
    cause="its examples interact, as in contrastive losses",
    remedy="train on one replica, or accept this",
)
_UNKNOWN = "shards could not be compared with the whole batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Separability:
    """Verdict on the equivalence of all shards together to the whole batch.

    Attributes:
        separable: None if undecidable.
        explanation: one sentence with the reason and the consequence.
        gradient_difference: largest one, that of `variable`; None, like the rest, if nothing was compared.
        state_difference: largest one, that of `state_variable`; None also without forward state.
    """

    separable: bool | None
    explanation: str
    gradient_difference: float | None = None
    variable: str | None = None
    loss_difference: float | None = None
    state_difference: float | None = None
    state_variable: str | None = None


class Noise:
    """Rounding noise of the whole batch, measured only until more of it cannot change the answer.

    Args:
        measurements: differences of the whole batch from itself, one for each way of rounding; at least one.
    """

    def __init__(self, measurements: Iterable[Differences]) -> None:
        self._left = iter(measurements)
        self._largest: Differences | None = None

    def explains(self, differences: Differences) -> bool | None:
        """Return True if noise explains all differences, None if it may hide a coupling as well."""
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
    ways_out: Mapping[WayOut, Callable[[], Differences]],
    *,
    reduction: Reduction,
    n_shards: int,
) -> Separability:
    """Compare the combined results of a batch's shards with the step on the whole batch.

    Args:
        declared: differences from the whole batch if shards are combined by `reduction`.
        otherwise: differences if shards are combined in the other way.
        ways_out: cause and remedy → function that returns the remaining differences.
        reduction: declared rule by which the loss combines the examples' losses.
    Raises:
        UsageError: the loss follows the other rule.
    """
    agrees = noise.explains(declared)
    if agrees is not False:
        return _separable(declared, reduction, n_shards) if agrees else _hidden(declared, n_shards)
    if noise.explains(otherwise()):
        raise UsageError(_misdeclared(reduction, n_shards), field="train_step")
    way_out = next((way for way, left in ways_out.items() if noise.explains(left())), _COUPLED)
    return _coupled(declared, n_shards, way_out)


def unknown(reason: str) -> Separability:
    """Undecided verdict.

    Args:
        reason: reason, as a sentence.
    """
    return Separability(separable=None, explanation=f"{_UNKNOWN}: {reason}")


def _within(
    differences: Differences, floors: Differences | None, factor: float = NOISE_FACTOR
) -> bool | None:
    """Compare with the noise that was measured so far; see `Noise.explains`.

    Forward state that is rounding alone (the mean of normalised values) is ignored.
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
    name, of_tally = _worst(differences.tallies)
    beside = f"; {name} differs, because every shard adds to it, without effect on training"
    return _of(
        differences,
        separable=True,
        explanation=f"the {reduction} over {n_shards} shards is what the step computes on the whole batch: "
        f"loss, gradients and forward state differ by {largest:.2g} at most"
        + (beside if of_tally > LEAST_TOLERANCE else ""),
    )


def _hidden(differences: Differences, n_shards: int) -> Separability:
    name, difference = _worst(differences.gradients)
    return _of(
        differences,
        separable=None,
        explanation=f"{_UNKNOWN}: the gradient of {name} differs {_by(difference)} between the whole batch "
        f"and its {n_shards} shards, and rounding alone can cause that",
    )


def _coupled(differences: Differences, n_shards: int, way_out: WayOut) -> Separability:
    name, difference = _worst(differences.gradients)
    state, of_state = _worst(differences.state)
    cause, remedy = way_out.cause, way_out.remedy
    figures = f"gradient of {name} differs {_by(difference)}, loss {_by(differences.loss)}"
    if max(differences.loss, difference) <= LEAST_TOLERANCE:
        cause = f"each changes forward state {state}, which the step reads"
        # Whole numbers that differ do so infinitely.
        figures = f"it differs {_by(of_state)}" if isfinite(of_state) else "a counter, for example"
        remedy = "change it by the number of examples, or in the update"
    return _of(
        differences,
        separable=False,
        explanation=f"{n_shards} shards train differently from the whole batch "
        f"({cause}: {figures}); {remedy}",
    )


def _by(difference: float) -> str:
    return f"by {100 * difference:.2g} %" if isfinite(difference) else "infinitely"


def _of(differences: Differences, *, separable: bool | None, explanation: str) -> Separability:
    variable, gradient = _worst(differences.gradients)
    state_variable, state = _worst(differences.state)
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
            f"the loss must be a mean over the examples of a batch, got a sum (that of {n_shards} shards is "
            'that of the whole batch); take the mean, or declare the sum with TrainStep(reduction="sum")'
        )
    return (
        f'TrainStep(reduction="sum") needs a sum over examples, got a mean (that of {n_shards} shards is '
        "that of the whole batch); drop reduction"
    )


def part_of_draw(whole: Array, shape: Sequence[int], shard: Shard, n_examples: int) -> Array | None:
    """Part of a random draw that gives a shard's examples the same numbers as in the whole batch.

    Args:
        shape: shape of the shard's own draw.
        n_examples: examples in the whole batch.
    Returns:
        The whole draw if the shard draws as much; else the shard's range of the one axis whose length grows
        with the number of examples; None without such an axis.
    """
    if whole.shape == tuple(shape):
        return whole
    if whole.ndim != len(shape):
        return None
    axes = [axis for axis, (n, own) in enumerate(zip(whole.shape, shape, strict=True)) if n != own]
    per_example, rest = divmod(whole.shape[axes[0]], n_examples)
    if len(axes) > 1 or rest or shape[axes[0]] != per_example * shard.examples:
        return None
    span = slice(per_example * shard.start, per_example * shard.stop)
    return whole[(slice(None),) * axes[0] + (span,)]
