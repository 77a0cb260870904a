"""All strategies by name."""

import itertools
import math
from dataclasses import replace
from typing import Any

from strategies.builders import (
    all_reduce,
    parallax,
    parameter_server,
    partitioned,
    robust,
    sharded,
    tensorflow_strategies,
    tpu,
)
from strategies.builders.knobs import MERGE_ROWS
from strategies.errors import StrategyError, suggestion
from strategies.params import Param, Params
from strategies.plan import compressors
from strategies.plan.schema import Plan, StepSummary
from strategies.plan.strategy import Strategy, independent
from strategies.planner import Settled, plan_of, settled
from strategies.topology import Topology

_DESCRIBED = (
    Strategy(
        name="single",
        summary="the captured step on one device",
        layout=independent,
        single=True,
    ),
    Strategy(
        name="none",
        summary="every replica trains by itself: the speed without communication, a control",
        strategy_class="control",
        layout=independent,
    ),
    Strategy(
        name="ps",
        summary="parameter server, all variables on one; every worker waits for all, or less",
        layout=parameter_server.one_server,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="ps-load-balancing",
        summary="parameter servers on all workers, each variable on the least loaded one",
        layout=parameter_server.load_balancing,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="all-reduce",
        summary="collectives over buckets of gradients during backward; every replica owns all variables",
        layout=all_reduce.bucketed,
        params=(*all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="hierarchical-all-reduce",
        summary="all-reduce between workers, by one replica of each that speaks for all of its worker",
        layout=all_reduce.hierarchical,
        params=(*all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="local-sgd",
        summary="replicas update by themselves; every few steps their variables become their average",
        strategy_class="statistical",
        layout=all_reduce.averaged,
        params=(all_reduce.PERIOD, *all_reduce.BUCKETS),
    ),
    Strategy(
        name="partitioned-ps",
        summary="parameter servers; variables in equal parts, as few as divide their rows",
        layout=partitioned.on_servers(partitioned.by_smallest_divisor),
        parts=partitioned.by_smallest_divisor,
        whole="ps-load-balancing",
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="uneven-partitioned-ps",
        summary="parameter servers; variables in unequal parts, as few as do not divide their rows",
        layout=partitioned.on_servers(partitioned.by_smallest_non_divisor),
        parts=partitioned.by_smallest_non_divisor,
        whole="ps-load-balancing",
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="sharded-ps",
        summary="parameter servers; every large variable over all of them",
        layout=partitioned.on_servers(partitioned.by_servers, apart=True),
        parts=partitioned.by_servers,
        whole="ps-load-balancing",
        params=(partitioned.MIN_BYTES, *parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="parallax",
        summary="collectives for dense variables, parameter servers for those with sparse gradients",
        layout=parallax.by_gradient,
        params=(*parallax.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="partitioned-all-reduce",
        summary="collectives, one for each part of a variable; every replica owns all parts",
        layout=partitioned.by_collectives(partitioned.by_smallest_divisor),
        parts=partitioned.by_smallest_divisor,
        whole="all-reduce",
        params=(partitioned.MAX_SHARDS, *all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="random-axis-partitioned-all-reduce",
        summary="collectives, one for each part of a variable along an axis drawn by seed",
        layout=partitioned.by_collectives(partitioned.along_random_axis),
        parts=partitioned.along_random_axis,
        whole="all-reduce",
        params=(
            partitioned.MAX_SHARDS,
            partitioned.SEED,
            *all_reduce.PARAMS,
            *compressors.PARAMS,
        ),
    ),
    Strategy(
        name="sharded-update",
        summary="each replica updates its share of the variables, whose slots no other has, and tells all",
        layout=sharded.sharded_update,
        params=sharded.PARAMS,
    ),
    Strategy(
        name="fully-sharded",
        summary="each replica keeps its share of the variables and slots; all gather values before they read",
        layout=sharded.fully_sharded,
        params=sharded.PARAMS,
        notes=sharded.notes,
    ),
    Strategy(
        name="robust-ps",
        summary="parameter server that combines workers' gradients by a rule that withstands faulty ones",
        layout=robust.on_server,
        params=(*robust.PARAMS, *robust.SERVERS),
        notes=robust.notes,
    ),
    Strategy(
        name="robust-all-reduce",
        summary="every worker gathers all gradients and combines them by a rule that withstands faulty ones",
        layout=robust.by_all_workers,
        params=robust.PARAMS,
        notes=robust.notes,
    ),
    Strategy(
        name="tpu-replicate",
        summary="one program on all TPU cores, in a loop of the host; emulated on other devices",
        layout=tpu.replicated,
        params=tpu.PARAMS,
        refuses=tpu.refuse,
        notes=tpu.notes,
        devices=("cpu", "gpu", "tpu"),
        on_one_host=("tpu",),
    ),
    Strategy(
        name="tf-one-device",
        summary="TensorFlow's OneDeviceStrategy: its own single-device step",
        layout=independent,
        single=True,
        runner="baseline",
    ),
    Strategy(
        name="tf-mirrored",
        summary="TensorFlow's MirroredStrategy: collectives between the replicas of one worker",
        layout=tensorflow_strategies.mirrored,
        params=(
            Param(
                name="cross_device_ops",
                type=str,
                default="auto",
                choices=("auto", "nccl", "hierarchical-copy", "reduction-to-one-device"),
            ),
        ),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_workers,
    ),
    Strategy(
        name="tf-central-storage",
        summary="TensorFlow's CentralStorageStrategy: replicas of one worker, and variables in one place",
        layout=tensorflow_strategies.central,
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_workers,
    ),
    Strategy(
        name="tf-multi-worker-mirrored",
        summary="TensorFlow's MultiWorkerMirroredStrategy: collectives between workers",
        layout=tensorflow_strategies.mirrored,
        params=(
            Param(name="communication", type=str, default="auto", choices=("auto", "ring", "nccl")),
            Param(name="bytes_per_pack", type=int, default=0, minimum=0),
        ),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_replicas,
    ),
    Strategy(
        name="tf-parameter-server",
        summary="TensorFlow's ParameterServerStrategy: a coordinator hands out steps, no update waits",
        strategy_class="statistical",
        layout=tensorflow_strategies.round_robin,
        params=(tensorflow_strategies.SERVERS,),
        runner="coordinator",
        refuses=tensorflow_strategies.refuse_uneven_work,
    ),
    Strategy(
        name="tf-tpu",
        summary="TensorFlow's TPUStrategy: sums between the TPU devices of one host",
        layout=tensorflow_strategies.summed_on_tpus,
        params=(tpu.MATMUL,),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_hosts,
        devices=("tpu",),
    ),
)
# Of every strategy that rewrites graphs, so that what their updates cost is the same for all.
FUSED_UPDATE = Param(name="fused_update", type=bool, default=True)


def _with_common(strategy: Strategy) -> Strategy:
    own = {p.name for p in strategy.params}
    common = (p for p in (FUSED_UPDATE, MERGE_ROWS) if p.name not in own)
    return replace(strategy, params=(*strategy.params, *common))


STRATEGIES = tuple(
    _with_common(strategy) if strategy.runner == "graph" else strategy for strategy in _DESCRIBED
)
KNOBS = {
    p.name: p
    for p in sorted((p for s in STRATEGIES for p in s.params), key=lambda p: len(p.choices) or math.inf)
}
"""Knobs that passes read of any plan, so that a name means the same whoever declares it; a strategy may allow
fewer values."""
_BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def describe() -> list[dict[str, Any]]:
    """Rows of `stratbench list strategies`."""
    return [
        {
            "name": s.name,
            "summary": s.summary,
            "class": s.strategy_class,
            "params": [param.describe() for param in s.params],
        }
        for s in STRATEGIES
    ]


def resolve(name: str, params: Params | None = None) -> Settled:
    """Find a strategy by name, `-` and `_` alike, and fill in its default parameters.

    Raises:
        StrategyError: unknown name (with a suggestion), or as `settled`.
    """
    kebab = name.replace("_", "-")
    if kebab not in _BY_NAME:
        raise StrategyError(f"strategy {name!r}: unknown name; {suggestion(kebab, _BY_NAME)}")
    return settled(_BY_NAME[kebab], params)


def make_plan(name: str, params: Params | None, step: StepSummary, topology: Topology) -> Plan:
    """Plan of a strategy for a captured step.

    Raises:
        StrategyError: as `resolve` and `plan_of`.
        UnsupportedError: the strategy cannot run on this topology.
    """
    return plan_of(*resolve(name, params), step, topology)


MOST_COMBINATIONS = 1_000
"""Each is planned before any is measured."""


def alternatives(strategy: Strategy, fixed: Params) -> tuple[Params, ...]:
    """Other values of tunable knobs that compute the same, each with the given parameters.

    Args:
        strategy: with the class of the given parameters.
        given: snake_case.
    Raises:
        StrategyError: too many combinations.
    """
    params = [p for p in strategy.params if p.tunable and p.name not in fixed]
    choices = [tuple(dict.fromkeys((p.default, *p.tunable))) for p in params]
    n_combinations = math.prod(map(len, choices))
    if n_combinations > MOST_COMBINATIONS:
        raise StrategyError(
            f"strategy {strategy.name!r}: tunable values must combine to at most {MOST_COMBINATIONS}, got "
            f"{n_combinations} of {', '.join(p.name for p in params)}; give some of these a value"
        )
    valid_changes = []
    for values in itertools.product(*choices):
        changes = {p.name: value for p, value in zip(params, values, strict=True) if value != p.default}
        changed = {**fixed, **changes}
        if changes and _computes_the_same(strategy, changed):
            valid_changes.append(changed)
    return tuple(valid_changes)


def _computes_the_same(strategy: Strategy, params: Params) -> bool:
    try:
        return settled(strategy, params)[0].strategy_class == strategy.strategy_class
    except StrategyError:
        return False  # knobs of which only one can be given
