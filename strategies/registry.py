"""All strategies by name, and making plans with them."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strategies import compressors
from strategies.builders import all_reduce, baselines, local, parameter_server, partitioned
from strategies.builders.base import Param, Params, ParamValue, Strategy
from strategies.cost import payload_matrix, server_bytes, worker_bytes
from strategies.errors import StrategyError, UnsupportedError
from strategies.plan import Plan, StepSummary
from strategies.topology import Topology

_STRATEGIES = (
    Strategy(
        name="single",
        summary="the captured step on one device, unchanged",
        strategy_class="exact",
        layout=local.independent,
        single=True,
    ),
    Strategy(
        name="none",
        summary="every replica trains by itself: the speed without communication, a control",
        strategy_class="control",
        layout=local.independent,
    ),
    Strategy(
        name="ps",
        summary="parameter server, all variables on one; every worker waits for all, or less",
        strategy_class="exact",
        layout=parameter_server.one_server,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
        settle=parameter_server.settle,
    ),
    Strategy(
        name="ps-load-balancing",
        summary="parameter servers on all workers, each variable on the least loaded one",
        strategy_class="exact",
        layout=parameter_server.load_balancing,
        params=(*parameter_server.PARAMS, *compressors.PARAMS),
        settle=parameter_server.settle,
    ),
    Strategy(
        name="all-reduce",
        summary="collectives over buckets of gradients during backward; every replica owns all variables",
        strategy_class="exact",
        layout=all_reduce.bucketed,
        params=(*all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="partitioned-ps",
        summary="parameter servers; variables in equal parts, as few as divide their rows",
        strategy_class="exact",
        layout=partitioned.partitioned_ps,
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
        settle=parameter_server.settle,
    ),
    Strategy(
        name="uneven-partitioned-ps",
        summary="parameter servers; variables in unequal parts, as few as do not divide their rows",
        strategy_class="exact",
        layout=partitioned.uneven_partitioned_ps,
        params=(partitioned.MAX_SHARDS, *parameter_server.PARAMS, *compressors.PARAMS),
        settle=parameter_server.settle,
    ),
    Strategy(
        name="sharded-ps",
        summary="parameter servers; every large variable over all of them",
        strategy_class="exact",
        layout=partitioned.sharded_ps,
        params=(partitioned.MIN_BYTES, *parameter_server.PARAMS, *compressors.PARAMS),
        settle=parameter_server.settle,
    ),
    Strategy(
        name="partitioned-all-reduce",
        summary="collectives, one for each part of a variable; every replica owns all parts",
        strategy_class="exact",
        layout=partitioned.partitioned_all_reduce,
        params=(partitioned.MAX_SHARDS, *all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="random-axis-partitioned-all-reduce",
        summary="collectives, one for each part of a variable along an axis drawn by seed",
        strategy_class="exact",
        layout=partitioned.random_axis,
        params=(partitioned.MAX_SHARDS, partitioned.SEED, *all_reduce.PARAMS, *compressors.PARAMS),
    ),
    Strategy(
        name="tf-one-device",
        summary="TensorFlow's OneDeviceStrategy: its own single-device step",
        strategy_class="exact",
        layout=local.independent,
        single=True,
        runner="baseline",
    ),
    Strategy(
        name="tf-mirrored",
        summary="TensorFlow's MirroredStrategy: collectives between the replicas of one worker",
        strategy_class="exact",
        layout=baselines.mirrored,
        params=(
            Param(
                name="cross_device_ops",
                type=str,
                default="auto",
                choices=("auto", "nccl", "hierarchical-copy", "reduction-to-one-device"),
            ),
        ),
        runner="baseline",
        refuses=baselines.refuse_more_workers,
    ),
    Strategy(
        name="tf-multi-worker-mirrored",
        summary="TensorFlow's MultiWorkerMirroredStrategy: collectives between workers",
        strategy_class="exact",
        layout=baselines.mirrored,
        params=(
            Param(name="communication", type=str, default="auto", choices=("auto", "ring", "nccl")),
            Param(name="bytes_per_pack", type=int, default=0, minimum=0),
        ),
        runner="baseline",
        refuses=baselines.refuse_more_replicas,
    ),
)
_BY_NAME = {strategy.name: strategy for strategy in _STRATEGIES}


def describe() -> list[dict[str, Any]]:
    """What `stratbench list strategies` shows."""
    return [
        {
            "name": s.name,
            "summary": s.summary,
            "class": s.strategy_class,
            "params": [{"name": p.name, "type": p.type.__name__, "default": p.default} for p in s.params],
        }
        for s in _STRATEGIES
    ]


def resolve(name: str, params: Params | None = None) -> tuple[Strategy, dict[str, ParamValue]]:
    """A strategy by its name, `-` and `_` alike, and all of its parameters with defaults filled in.

    With a compressor it is of class `bounded`.

    Raises:
        StrategyError: for an unknown name or parameter (with a suggestion), or a value of the wrong type.
    """
    kebab = name.replace("_", "-")
    if kebab not in _BY_NAME:
        raise StrategyError(f"strategy {name!r}: unknown name; {_suggest(kebab, _BY_NAME)}")
    strategy = _BY_NAME[kebab]
    known = {p.name: p for p in strategy.params}
    values: dict[str, ParamValue] = {p.name: p.default for p in strategy.params}
    for key, value in (params or {}).items():
        snake = key.replace("-", "_")
        if snake not in known:
            hint = _suggest(snake, known) if known else "it takes no parameters"
            raise StrategyError(f"strategy {kebab!r}: unknown parameter {key!r}; {hint}")
        values[snake] = _checked(kebab, known[snake], value)
    if values.get("bucket_bytes") is not None and "chunk_size" in (params or {}):
        raise StrategyError(
            f"strategy {kebab!r}: takes chunk_size or bucket_bytes, got both; drop one of them"
        )
    compression, filled = compressors.choose(kebab, values)
    made = strategy.strategy_class if compression is None else "bounded"
    if strategy.settle is not None:
        made = strategy.settle(filled, made)
    return replace(strategy, strategy_class=made), dict(filled)


def make_plan(name: str, params: Params | None, step: StepSummary, topology: Topology) -> Plan:
    """The plan of a strategy for a step.

    Raises:
        StrategyError: as `resolve`, or for more than one replica with a strategy that runs one.
        UnsupportedError: the strategy cannot run on this topology.
    """
    strategy, values = resolve(name, params)
    if strategy.single and topology.n_replicas > 1:
        raise StrategyError(
            f"strategy {strategy.name!r}: runs one replica, got {topology.n_replicas}; "
            "use workers=1 and replicas=1"
        )
    reason = None if strategy.refuses is None else strategy.refuses(topology, values)
    if reason is not None:
        raise UnsupportedError(f"strategy {strategy.name!r}: {reason}")
    layout = local.independent if topology.n_replicas == 1 else strategy.layout
    compression, _ = compressors.choose(strategy.name, values)
    laid_out = layout(step, topology, values)
    nodes = compressors.compressed(laid_out, step, compression, n_replicas=topology.n_replicas)
    matrix = payload_matrix(step, nodes, topology)
    notes = [*step.notes]
    if topology.n_replicas == 1 and not strategy.single and strategy.runner == "graph":
        notes.append(f"one replica: {strategy.name} leaves the captured graph unchanged")
    elif compression is not None and not any(node.compressor for node in nodes):
        notes.append(f"{compression.name}: makes no gradient smaller here, all travel as they are")
    return Plan(
        workload=step.workload,
        strategy=strategy.name,
        strategy_params=values,
        strategy_class=strategy.strategy_class,
        replicas_per_task=topology.replicas_per_task,
        batch_size=topology.batch_size,
        device=topology.device,
        nodes=nodes,
        payload_bytes_per_step=sum(map(sum, matrix)),
        payload_matrix=matrix,
        server_bytes=server_bytes(nodes, topology),
        worker_bytes=worker_bytes(nodes),
        notes=tuple(notes),
    )


def _checked(strategy: str, param: Param, value: ParamValue) -> ParamValue:
    if value is None and param.default is None:
        return None
    way_out = "leave it out" if param.default is None else f"leave it out for {param.default!r}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = whole if param.type is int else isinstance(value, param.type)
    if param.type is float and whole:
        value, fits = float(value or 0), True
    if not fits:
        raise StrategyError(
            f"strategy {strategy!r}: {param.name} must be {param.type.__name__}, got {value!r}; {way_out}"
        )
    if param.choices and value not in param.choices:
        raise StrategyError(
            f"strategy {strategy!r}: {param.name} must be one of {', '.join(param.choices)}, got {value!r}"
        )
    if param.minimum is not None and isinstance(value, int | float) and value < param.minimum:
        raise StrategyError(
            f"strategy {strategy!r}: {param.name} must be at least {param.minimum:g}, got {value!r}; "
            f"{way_out}"
        )
    return value


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
