"""Plans drawn at random: steps with every kind of variable, and parameters of any strategy."""

from math import prod

from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError
from strategies.plan.schema import StatisticSummary
from strategies.registry import make_plan
from strategies.topology import Topology

_BYTES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8}
_NUMBERS = {
    "bucket_bytes": (8, 64, 2000),
    "chunk_size": (1, 2, 3),
    "max_shards": (2, 3, 8, 50),
    "min_bytes": (1, 20, 100),
    "servers": (1, 2, 3),
    "period": (1, 2, 3, 8),
    "staleness": (0, 1),
    "backup": (0, 1),
    "accumulate": (1, 2),
    "steps_per_loop": (1, 3, 10),
    "seed": (0, 1),
    "bytes_per_pack": (0, 50),
}
_COMPRESSORS = (
    {"compressor": "fp16"},
    {"compressor": "bf16"},
    {"compressor": "bf16-ef"},
    {"compressor": "topk", "compressor_ratio": 0.3},
    {"compressor": "powersgd", "compressor_rank": 1},
    {"compressor": "signsgd-ef"},
    {"compressor": "qsgd"},
)


def _variable(draw, name, place):
    if draw.random() < 0.2:
        shape = draw.choice((64, 600, 1100)), draw.choice((30, 300, 512))
    else:
        shape = tuple(
            draw.choice((1, 2, 3, 5, 8, 12, 17, 40)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3)))
        )
    dtype = draw.choice(("float",) * 6 + ("half", "double", "bfloat16"))
    crossings = draw.choice((1, 1, 1, 1, 2, 3))
    fields = {
        "dtype": dtype,
        "bytes": _BYTES[dtype] * prod(shape),
        "readiness": place,
        "crossings": crossings,
        "reads": draw.choice((0, 1, 1, 1, 2)),
        "updates": draw.choice((1, 1, crossings)),
        "gradient_shared": draw.random() < 0.15,
        "read_before_update": draw.random() < 0.7,
    }
    if draw.random() < 0.8:
        axes = tuple(range(len(shape)))
        fields |= {"partitionable_axes": axes, "apart": True, "apart_axes": axes}
    if draw.random() < 0.1:
        fields |= {"synced": False, "only_read": draw.random() < 0.5}
    elif len(shape) > 1 and draw.random() < 0.35:
        fields |= {
            "sparse": True,
            "rows_per_example": draw.choice((None, 1.0, 2.0, 2.5)),
            "rows_per_step": draw.choice((0.0, 3.0)),
            "linear_rows": draw.random() < 0.5,
            "dense_crossings": draw.choice((0, 0, min(1, crossings - 1))),
        }
    return trainable(name, *shape, **fields)


def random_step(draw):
    """Step with one to six trainables, slots, forward state and batch statistics.

    Args:
        draw: `random.Random`.
    """
    variables = []
    for place in range(draw.randint(1, 6)):
        v = _variable(draw, f"v{place}", place)
        variables.append(v)
        if draw.random() < 0.6:
            own = slot(f"{v.name}/m", v.name, *v.shape)
            variables.append(own.model_copy(update={"dtype": v.dtype, "bytes": v.bytes}))
    for number in range(draw.randint(0, 2)):
        rule = draw.choice(("mean", "sum", "first-replica", "per-replica"))
        variables.append(state(f"s{number}", draw.choice((1, 2, 7)), rule=rule))
    if draw.random() < 0.3:
        variables.append(slot("shared", None, 3).model_copy(update={"reads": draw.choice((0, 1))}))
    layers = range(draw.choice((0, 0, 1, 2, 3)))
    statistics = [
        StatisticSummary(layer=f"norm_{k}", bytes=48 * (k + 1), levels=(2 * k + 1, 2 * k + 2, 9, 10))
        for k in layers
    ]
    return step_of(*variables).model_copy(update={"statistics": tuple(statistics)})


def random_params(draw, strategy):
    """Values of some of a strategy's parameters."""
    params = {}
    for p in strategy.params:
        if draw.random() < 0.6 or p.name.startswith("compressor_"):
            continue
        if p.name == "compressor":
            params |= draw.choice(_COMPRESSORS)
        elif p.choices:
            params[p.name] = draw.choice(p.choices)
        elif p.type is bool:
            params[p.name] = draw.random() < 0.5
        elif p.name in _NUMBERS:
            params[p.name] = draw.choice(_NUMBERS[p.name])
    return params


def random_plan(draw, strategy):
    """Step and its plan on one to six tasks of one to three replicas; None if they do not go together."""
    n_tasks = draw.randint(1, 6)
    counts = tuple(draw.randint(1, 3) for _ in range(n_tasks))
    if draw.random() < 0.4:
        counts = (counts[0],) * n_tasks
    batch_size = sum(counts) * draw.choice((1, 2, 4)) + draw.choice((0, draw.randint(0, 9)))
    device = "tpu" if strategy.devices == ("tpu",) else draw.choice(("cpu", "cpu", "gpu"))
    step = random_step(draw)
    try:
        topology = Topology(replicas_per_task=counts, batch_size=batch_size, device=device)
        return step, make_plan(strategy.name, random_params(draw, strategy), step, topology)
    except StrategyError:
        return None
