"""All strategies by name."""

import itertools
import math
import re
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
from strategies.builders.shared_params import MERGE_ROWS
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
        summary="One worker trains alone: the baseline.",
        layout=independent,
        single=True,
    ),
    Strategy(
        name="none",
        usual_name="no communication",
        summary="Each replica trains alone, without communication. A control.",
        strategy_class="control",
        layout=independent,
    ),
    Strategy(
        name="ps",
        usual_name="parameter server",
        summary="All variables are on worker 0; workers pull variables and push gradients.",
        layout=parameter_server.one_server,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="ps-load-balancing",
        usual_name="parameter servers",
        summary="Variables are spread over all workers by size; workers pull and push.",
        layout=parameter_server.load_balancing,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="all-reduce",
        usual_name="DDP, Horovod",
        summary="Each replica has the whole model; gradients are summed in buckets during backward.",
        layout=all_reduce.bucketed,
        params=(*all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="hierarchical-all-reduce",
        usual_name="two-level all-reduce",
        summary="Replicas reduce inside their worker; one of each worker all-reduces.",
        layout=all_reduce.hierarchical,
        params=(*all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="local-sgd",
        usual_name="local SGD, FedAvg-like",
        summary="Replicas train alone and average their variables every few steps.",
        strategy_class="statistical",
        layout=all_reduce.averaged,
        params=(all_reduce.PERIOD, *all_reduce.BUCKETS),
    ),
    Strategy(
        name="partitioned-ps",
        usual_name="AutoDist PartitionedPS",
        summary="Parameter servers; variables are split into equal parts.",
        layout=partitioned.on_servers(partitioned.by_smallest_divisor),
        parts=partitioned.by_smallest_divisor,
        whole="ps-load-balancing",
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="uneven-partitioned-ps",
        usual_name="AutoDist UnevenPartitionedPS",
        summary="Parameter servers; variables are split into unequal parts.",
        layout=partitioned.on_servers(partitioned.by_smallest_non_divisor),
        parts=partitioned.by_smallest_non_divisor,
        whole="ps-load-balancing",
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="sharded-ps",
        usual_name="sharded parameter servers",
        summary="Parameter servers; each large variable is split over several or all of them.",
        layout=partitioned.on_servers(partitioned.by_servers, apart=True),
        parts=partitioned.by_servers,
        whole="ps-load-balancing",
        params=(
            partitioned.MIN_BYTES,
            partitioned.SERVER_PARTS,
            *parameter_server.PARAMS,
            *compressors.PARAMS,
        ),
        notes=partitioned.fewer_parts,
    ),
    Strategy(
        name="parallax",
        usual_name="hybrid PS + all-reduce",
        summary="All-reduce for dense gradients, parameter servers for sparse ones (embeddings).",
        layout=parallax.by_gradient,
        params=(*parallax.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="partitioned-all-reduce",
        usual_name="AutoDist PartitionedAR",
        summary="All-reduce of parts of variables; each replica has the whole model.",
        layout=partitioned.by_collectives(partitioned.by_smallest_divisor),
        parts=partitioned.by_smallest_divisor,
        whole="all-reduce",
        params=(partitioned.MAX_SHARDS, *all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="random-axis-partitioned-all-reduce",
        usual_name="AutoDist RandomAxisPartitionAR",
        summary="All-reduce of parts of variables, split along a random axis.",
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
        usual_name="ZeRO-1, ZeRO-2",
        summary="Each gradient goes to one owner, which updates it; optimizer state is sharded.",
        layout=sharded.sharded_update,
        params=sharded.PARAMS,
    ),
    Strategy(
        name="fully-sharded",
        usual_name="FSDP, ZeRO-3",
        summary="Variables and optimizer state are sharded; values are gathered before use.",
        layout=sharded.fully_sharded,
        params=sharded.PARAMS,
        notes=sharded.notes,
    ),
    Strategy(
        name="robust-ps",
        usual_name="Byzantine-robust PS",
        summary="Parameter server with an aggregation rule that tolerates faulty workers.",
        layout=robust.on_server,
        params=(*robust.PARAMS, *robust.SERVERS),
        notes=robust.notes,
    ),
    Strategy(
        name="robust-all-reduce",
        usual_name="Byzantine-robust all-reduce",
        summary="Each worker gathers all gradients and aggregates them by a robust rule.",
        layout=robust.by_all_workers,
        params=robust.PARAMS,
        notes=robust.notes,
    ),
    Strategy(
        name="tpu-replicate",
        usual_name="TPU data parallelism",
        summary="One program on all TPU cores, in a loop of the host; emulated on other devices.",
        layout=tpu.replicated,
        params=tpu.PARAMS,
        refuses=tpu.refuse,
        notes=tpu.notes,
        devices=("cpu", "gpu", "tpu"),
        on_one_host=("tpu",),
    ),
    Strategy(
        name="tf-one-device",
        usual_name="OneDeviceStrategy",
        summary="TensorFlow's own, on one device.",
        layout=independent,
        single=True,
        runner="baseline",
    ),
    Strategy(
        name="tf-mirrored",
        usual_name="MirroredStrategy",
        summary="TensorFlow's own all-reduce between the replicas of one worker.",
        layout=tensorflow_strategies.mirrored,
        params=(
            Param(
                name="cross_device_ops",
                type=str,
                default="auto",
                choices=("auto", "nccl", "hierarchical-copy", "reduction-to-one-device"),
                summary="TensorFlow's way of summing gradients inside a worker.",
            ),
        ),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_workers,
    ),
    Strategy(
        name="tf-central-storage",
        usual_name="CentralStorageStrategy",
        summary="TensorFlow's own; replicas of one worker share variables in one place.",
        layout=tensorflow_strategies.central,
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_workers,
    ),
    Strategy(
        name="tf-multi-worker-mirrored",
        usual_name="MultiWorkerMirroredStrategy",
        summary="TensorFlow's own all-reduce between workers.",
        layout=tensorflow_strategies.mirrored,
        params=(
            Param(
                name="communication",
                type=str,
                default="auto",
                choices=("auto", "ring", "nccl"),
                summary="TensorFlow's implementation of collectives.",
            ),
            Param(
                name="bytes_per_pack",
                type=int,
                default=0,
                minimum=0,
                unit="bytes",
                summary="Size of TensorFlow's packs of gradients; 0: one pack.",
            ),
        ),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_replicas,
    ),
    Strategy(
        name="tf-parameter-server",
        usual_name="ParameterServerStrategy",
        summary="TensorFlow's own asynchronous parameter servers; a coordinator schedules steps.",
        strategy_class="statistical",
        layout=tensorflow_strategies.round_robin,
        params=(tensorflow_strategies.SERVERS,),
        runner="coordinator",
        refuses=tensorflow_strategies.refuse_uneven_work,
    ),
    Strategy(
        name="tf-tpu",
        usual_name="TPUStrategy",
        summary="TensorFlow's own all-reduce between the TPU cores of one host.",
        layout=tensorflow_strategies.summed_on_tpus,
        params=(tpu.MATMUL,),
        runner="baseline",
        refuses=tensorflow_strategies.refuse_more_hosts,
        devices=("tpu",),
    ),
)
# For every strategy that rewrites graphs, so that updates have the same cost in all.
FUSED_UPDATE = Param(
    name="fused_update",
    type=bool,
    default=True,
    summary="Use TensorFlow's fused optimizer kernels where they compute the same.",
)


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
"""Knobs that passes read from any plan, so that a name has one meaning; a strategy may allow
fewer values."""
ALONE = frozenset(strategy.name for strategy in STRATEGIES if strategy.single)
"""Names of strategies that always run one worker."""
_BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def describe() -> list[dict[str, Any]]:
    """Rows of `stratbench list strategies`."""
    return [
        {
            "name": s.name,
            "usual_name": s.usual_name,
            "summary": s.summary,
            "class": settled(s)[0].strategy_class,
            "params": [param.describe() for param in s.params],
        }
        for s in STRATEGIES
    ]


def resolve(name: str, params: Params | None = None) -> Settled:
    """Find a strategy by name, with `-` or `_`, and fill in its default parameters.

    Raises:
        StrategyError: the name is unknown (the message suggests one), or see `settled`.
    """
    kebab = name.replace("_", "-")
    if kebab not in _BY_NAME:
        word = kebab.lower()
        usual = [s.name for s in STRATEGIES if word in re.findall(r"[a-z0-9-]+", s.usual_name.lower())]
        hint = f"here it is {' or '.join(usual)}" if usual else suggestion(kebab, _BY_NAME)
        raise StrategyError(f"strategy {name!r}: unknown name; {hint}")
    return settled(_BY_NAME[kebab], params)


def make_plan(name: str, params: Params | None, step: StepSummary, topology: Topology) -> Plan:
    """Plan of a strategy for a captured step.

    Raises:
        StrategyError: see `resolve` and `plan_of`.
        UnsupportedError: the strategy cannot run on this topology.
    """
    return plan_of(*resolve(name, params), step, topology)


MOST_COMBINATIONS = 1_000
"""Limit, because a search of plans lists every combination."""


def alternatives(strategy: Strategy, fixed: Params) -> tuple[Params, ...]:
    """Other values of tunable knobs with the same computed result, each with the given parameters.

    Args:
        strategy: strategy with the class of the given parameters.
        fixed: parameters to keep, snake_case.
    Raises:
        StrategyError: there are too many combinations.
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
        return False  # knobs that exclude each other
