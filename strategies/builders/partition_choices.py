"""Choices of partition: along which axis a variable is cut and into how many parts, or why it stays whole."""

import random
from collections.abc import Callable, Mapping, Sequence

from strategies.plan.schema import PlanNode, StepSummary, VariableSummary
from strategies.plan.strategy import Choice, Param, Params
from strategies.topology import Topology

MAX_SHARDS = Param(name="max_shards", type=int, default=16, minimum=2, tunable=(2, 4, 16, 64))
MIN_BYTES = Param(name="min_bytes", type=int, default=16384, minimum=1, tunable=(1 << 10, 1 << 14, 1 << 18))
SEED = Param(name="seed", type=int, default=0, minimum=0)
CUTTING = frozenset({MAX_SHARDS.name, MIN_BYTES.name})
"""A strategy with one of these knobs cuts what it can."""
_N_NAMED = 3  # of the variables or reasons in a note


def smallest_divisor(length: int) -> int | None:
    """The smallest number ≥ 2 that divides a length; None for lengths below 2."""
    if length < 2:
        return None
    return next((n for n in range(2, int(length**0.5) + 1) if length % n == 0), length)


def smallest_non_divisor(length: int) -> int | None:
    """The smallest number ≥ 2 that does not divide a length, at most the length; None where there is none."""
    return next((n for n in range(2, length + 1) if length % n), None)


def near_equal(length: int, n: int) -> tuple[int, ...]:
    """Sizes of n parts that differ by one at most, the longer ones first."""
    share, longer = divmod(length, n)
    return tuple(share + (k < longer) for k in range(n))


def by_smallest_divisor(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:  # noqa: ARG001 - a Choices
    """Axis 0 in as many equal parts as its smallest divisor."""
    return _choices(step, smallest_divisor, params, _axis_0)


def by_smallest_non_divisor(
    step: StepSummary,
    topology: Topology,  # noqa: ARG001 - a Choices
    params: Params,
) -> dict[str, Choice]:
    """Axis 0 in as many parts as the smallest number that does not divide its length."""
    return _choices(step, smallest_non_divisor, params, _axis_0)


def by_servers(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:
    """Axis 0 of every large variable in a part for each server; one with fewer rows stays whole."""
    n_servers, least = topology.n_tasks, int(params[MIN_BYTES.name] or 0)

    def axis(v: VariableSummary) -> int | str:
        return _axis_0(v) if v.bytes >= least else f"smaller than min_bytes={least}"

    return _choices(step, lambda length: n_servers if 1 < n_servers <= length else None, {}, axis)


def along_random_axis(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:  # noqa: ARG001 - a Choices
    """A seeded random axis with length > 1, axis 0 for a sparse gradient, by its smallest divisor."""
    draw = random.Random(int(params[SEED.name] or 0))  # noqa: S311 - any sequence that a seed repeats

    def drawn(v: VariableSummary) -> int | str:
        axes = [a for a in v.partitionable_axes if v.shape[a] > 1]
        return draw.choice(axes) if axes else next(iter(v.cut_refusals.values()), _too_short(v))

    return _choices(step, smallest_divisor, params, drawn)


def nothing_cut(choices: Mapping[str, Choice], whole: str) -> str:
    """Why every variable stays whole and what to choose instead, in one sentence.

    Args:
        choices: for a plan without parts; one that would cut a variable was edited away.
        whole: the strategy that keeps variables whole.
    """
    by_reason: dict[str, list[str]] = {}
    for name, choice in choices.items():
        reason = choice if isinstance(choice, str) else "the plan was edited so"
        by_reason.setdefault(reason, []).append(repr(name))
    groups = [f"{few(names)} ({reason})" for reason, names in by_reason.items()]
    return (
        f"nothing is partitioned, every variable stays whole as under {whole}: {few(groups)}; choose {whole}"
    )


def few(items: Sequence[str]) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - _N_NAMED} more" if len(items) > _N_NAMED else ""
    return f"{', '.join(items[:_N_NAMED])}{more}"


def kept_whole(step: StepSummary, nodes: Sequence[PlanNode]) -> list[str]:
    """Which variables stay whole because of their updates, in one sentence for a plan, if any do."""
    cut = {node.variable for node in nodes if node.partition is not None}
    whole = [
        f"{v.name!r} ({next(iter(v.cut_refusals.values()))})"
        for v in step.variables
        if v.kind == "trainable" and v.synced and v.cut_refusals and v.name not in cut
    ]
    return [f"kept whole, since their updates cannot be cut: {few(whole)}"] if whole else []


def _axis_0(v: VariableSummary) -> int | str:
    return 0 if 0 in v.partitionable_axes else v.cut_refusals.get(0, _too_short(v))


def _too_short(v: VariableSummary) -> str:
    """Why a variable has nothing to cut, whatever its update is like."""
    return f"shape {list(v.shape)} has no such axis longer than 1" if v.shape else "a scalar has no axis"


def _choices(
    step: StepSummary,
    n_parts: Callable[[int], int | None],
    params: Params,
    axis_of: Callable[[VariableSummary], int | str],
) -> dict[str, Choice]:
    """What becomes of each trainable; one that would have more parts than `max_shards` stays whole."""
    most = params.get(MAX_SHARDS.name)
    choices: dict[str, Choice] = {}
    for v in step.variables:
        if v.kind != "trainable" or not v.synced:
            continue
        axis = axis_of(v)
        if isinstance(axis, str):
            choices[v.name] = axis
            continue
        length = v.shape[axis]
        n = n_parts(length)
        if n is None:
            choices[v.name] = f"no number of parts suits its length of {length} along axis {axis}"
        elif most is not None and n > int(most):
            choices[v.name] = f"{n} parts of its length of {length} are more than max_shards={most}"
        else:
            choices[v.name] = (axis, near_equal(length, n))
    return choices
