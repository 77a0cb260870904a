"""The layers that take statistics of the whole batch: all by a knob, or those whose author asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.builders.waiting import ACCUMULATE, SYNC_BATCH_NORM
from strategies.errors import UnsupportedError
from strategies.plan.schema import StatisticSummary, StepSummary
from strategies.plan.strategy import Strategy
from strategies.topology import Topology

_ASKED = "BatchNormalization(synchronized=True)"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStatistics:
    """The layers, in the order in which they are called, and what a plan should say of them."""

    layers: tuple[StatisticSummary, ...] = ()
    notes: tuple[str, ...] = ()


def joint_statistics(strategy: Strategy, step: StepSummary, topology: Topology) -> JointStatistics:
    """The statistics that replicas take together.

    Raises:
        UnsupportedError: they are asked for, and cannot be those of the whole batch.
    """
    if topology.n_replicas == 1:
        return JointStatistics()
    if topology.global_statistics:
        return _of_every_layer(strategy, step)
    if not step.synchronized:
        return JointStatistics()
    if strategy.strategy_class not in ("exact", "bounded"):
        return JointStatistics(notes=(_taken_apart(step.synchronized),))
    first = step.synchronized[0]
    if topology.micro_batches > 1:
        raise UnsupportedError(
            f"strategy {strategy.name!r}: layer {first!r}: {_ASKED} needs all examples at once, got "
            f"{ACCUMULATE.name}={topology.micro_batches}; drop {ACCUMULATE.name}, or synchronized=True"
        )
    for layer in step.synchronized:
        if layer in step.own_statistics:
            raise UnsupportedError(
                f"strategy {strategy.name!r}: layer {layer!r} has synchronized=True and "
                f"{step.own_statistics[layer]}, or drop synchronized=True"
            )
    return JointStatistics(layers=tuple(s for s in step.statistics if s.layer in step.synchronized))


def _of_every_layer(strategy: Strategy, step: StepSummary) -> JointStatistics:
    for layer, reason in step.own_statistics.items():
        raise UnsupportedError(
            f"strategy {strategy.name!r}: {SYNC_BATCH_NORM.name}=true: layer {layer!r} {reason}, or drop "
            f"{SYNC_BATCH_NORM.name}"
        )
    if step.statistics:
        return JointStatistics(layers=step.statistics)
    note = f"{SYNC_BATCH_NORM.name}: no layer normalises by its batch, nothing to synchronise"
    return JointStatistics(notes=(note,))


def _taken_apart(layers: Sequence[str]) -> str:
    named = ", ".join(layers[:_MOST_NAMED])
    more = f" and {len(layers) - _MOST_NAMED} more" if len(layers) > _MOST_NAMED else ""
    return (
        f"{_ASKED} takes the statistics of each replica's own examples where, as here, replicas step without "
        f"waiting for each other: {named}{more}"
    )
