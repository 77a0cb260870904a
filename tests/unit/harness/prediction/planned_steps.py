"""Steps of a small model under any strategy, planned as predictions plan them."""

from planning import state, step_of, trainable

from harness.prediction.costs import CollectiveCost, Costs, ServerCost, ValueCost
from harness.prediction.profile import StepProfile, VariableTimes
from harness.prediction.step_model import PlannedStep
from strategies.planner import exchanges, topology_of
from strategies.registry import make_plan
from strategies.topology import Topology

BATCH = 8192
N_BYTES = 4 * (256 * 1024 + 1024 * 64 + 4096 * 16)
"""Bytes of all trained variables."""
STEP = step_of(
    trainable("table", 4096, 16, readiness=2, sparse=True, rows_per_example=1.0, linear_rows=True),
    trainable("first", 256, 1024, readiness=1, partitionable_axes=(0, 1), apart=True, apart_axes=(0, 1)),
    trainable("last", 1024, 64, readiness=0, partitionable_axes=(0, 1), apart=True, apart_axes=(0, 1)),
    state("mean", 64),
)
DENSE = step_of(*(v.model_copy(update={"sparse": False, "rows_per_example": None}) for v in STEP.variables))
STRATEGIES = (
    "ps",
    "ps-load-balancing",
    "sharded-ps:max_shards=4096",
    "partitioned-ps",
    "parallax",
    "all-reduce",
    "all-reduce:transport=ring",
    "all-reduce:compressor=bf16",
    "hierarchical-all-reduce",
    "partitioned-all-reduce",
    "local-sgd",
    "sharded-update",
    "fully-sharded",
)
FREE = Costs(
    collectives=dict.fromkeys(
        ("tcp", "collectives"), CollectiveCost(**dict.fromkeys(CollectiveCost.__dataclass_fields__, 0.0))
    ),
    servers=ServerCost(**dict.fromkeys(ServerCost.__dataclass_fields__, 0.0)),
    codecs={"bf16": ValueCost(variable_s=0.0, value_s=0.0)},
    cut=ValueCost(variable_s=0.0, value_s=0.0),
    cut_table_s=0.0,
    assign_s=0.0,
    exchange_variation=0.0,
)
"""Exchanges that cost nothing but the time of their bytes on links."""
USUAL = Costs(
    collectives={"tcp": CollectiveCost(), "collectives": CollectiveCost()}, codecs={"bf16": ValueCost()}
)


def profile(step=STEP, *, compute_s=0.010, update_s=0.002, examples=1):
    """Profile in which each variable is used in turn, and has its gradient in reverse."""
    trained = [v.name for v in step.variables if v.kind == "trainable"]
    n = len(trained)
    times = {
        name: VariableTimes(
            needed_s=compute_s / 2 * k / n,
            ready_s=compute_s * (1 - k / (2 * n)),
            update_s=update_s / n,
        )
        for k, name in enumerate(trained)
    }
    return StepProfile(examples=examples, compute_s=compute_s, update_s=update_s, variables=times)


def planned(strategy, n_workers, *, step=STEP, own=None, **params):
    """A step under a strategy, written as on the command line."""
    name, _, written = strategy.partition(":")
    for knob, value in (pair.split("=") for pair in written.split(",") if pair):
        params[knob] = int(value) if value.isdecimal() else value
    topology = Topology(replicas_per_task=(1,) * n_workers, batch_size=BATCH)
    plan = make_plan(name, params, step, topology)
    shapes = topology_of(plan).kinds().examples
    return PlannedStep(
        plan=plan,
        step=step,
        flows=exchanges(plan, step),
        profiles={sum(shape): own or profile(step) for shape in shapes},
    )
