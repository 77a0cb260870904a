"""Plans that people edit: every plan of ours is taken as it is, and every mistake is one line that helps."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError, UnsupportedError
from strategies.plan import compressors
from strategies.plan.node_rules import check_nodes
from strategies.plan.schema import Plan
from strategies.registry import STRATEGIES, make_plan
from strategies.topology import Topology
from strategies.user_strategies import EditedPlan, read_plan

TWO = Topology(replicas_per_task=(1, 1), batch_size=8)
STEP = step_of(
    trainable("w", 12, 5, partitionable_axes=(0, 1), apart=True, apart_axes=(1,), readiness=1),
    trainable(
        "table",
        10,
        4,
        partitionable_axes=(0,),
        cut_refusals={1: "node 'Mean' (Mean): it is neither elementwise nor row-local"},
        apart=True,
        sparse=True,
        readiness=2,
    ),
    trainable("b", 5, readiness=0),
    trainable("n", 4, dtype="int32", bytes=16, readiness=3),
    slot("w/m", "w", 12, 5),
    slot("w/count", "w"),
    slot("iteration", None),
    state("mean", 3),
    state("seen", 1, rule="sum"),
    state("seed", 2, rule="per-replica"),
)
GRAPH = [s for s in STRATEGIES if s.runner == "graph" and not s.single]
COMPRESSIONS = [None, *compressors.BY_NAME]

shapes = st.lists(st.integers(1, 40), max_size=3).map(tuple)


def ownership(axes: tuple[int, ...]) -> Any:
    """Return if one replica can make an update, and along which axes several can share it."""
    return st.fixed_dictionaries(
        {"apart": st.booleans(), "gradient_shared": st.booleans(), "apart_axes": st.sampled_from([axes, ()])}
    ).filter(lambda fields: fields["apart"] or not fields["apart_axes"])


@st.composite
def steps(draw: st.DrawFn) -> Any:
    """Trainables of any shape, some sparse, with a slot each, beside shared and forward state."""
    variables = []
    for k in range(draw(st.integers(1, 6))):
        shape = draw(shapes)
        sparse = bool(shape) and draw(st.booleans())
        axes = draw(st.sets(st.sampled_from([0] if sparse else range(len(shape))))) if shape else set()
        axes = tuple(sorted(a for a in axes if shape[a] > 1))
        name = f"v{k}"
        variables.append(
            trainable(
                name, *shape, partitionable_axes=axes, sparse=sparse, readiness=k, **draw(ownership(axes))
            )
            if draw(st.booleans()) or k == 0
            else trainable(name, *shape, synced=False, readiness=None)
        )
        variables.append(slot(f"{name}/m", name, *draw(st.sampled_from([shape, ()]))))
    return step_of(
        *variables, slot("iteration", None), state("mean", 3), state("seed", 2, rule="per-replica")
    )


@settings(max_examples=60)
@given(
    steps(),
    st.sampled_from(GRAPH),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from([None, 64]),
    st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda counts: sum(counts) > 1),
)
def test_every_plan_that_a_strategy_makes_passes_and_is_the_same_again(
    step, strategy, compressor, bucket_bytes, counts
):
    knobs = {p.name for p in strategy.params}
    params = {"compressor": compressor} if "compressor" in knobs and compressor else {}
    params |= {"min_bytes": 1} if "min_bytes" in knobs else {}
    params |= {"bucket_bytes": bucket_bytes} if "bucket_bytes" in knobs and bucket_bytes else {}
    topology = Topology(replicas_per_task=tuple(counts), batch_size=24)
    if strategy.name == "tpu-replicate":
        topology = replace(topology, batch_size=topology.n_replicas)
        sparse = {v.name for v in step.variables if v.sparse}
        dense = tuple(v for v in step.variables if not {v.name, v.slot_of} & sparse)
        step = step.model_copy(update={"variables": dense})
        params["reshard"] = compressor is None
    plan = make_plan(strategy.name, params, step, topology)
    check_nodes(plan.nodes, step, topology, where="plan")
    again = edited(plan).plan(step, topology)
    labels = {"strategy": plan.strategy, "notes": plan.notes}
    if not any(node.compressor for node in plan.nodes):
        # Asking for a compressor promises no more than a bound; nodes without one are as good as before.
        labels["strategy_class"] = plan.strategy_class
    assert again.model_copy(update=labels) == plan


def edited(plan: Plan, change: Any = lambda document: None) -> EditedPlan:
    document = json.loads(plan.model_dump_json())
    change(document)
    return read_plan(json.dumps(document), name="plan-mine", where="plan mine.json")


def test_a_plan_of_before_rows_went_by_the_ring_is_read_as_it_was():
    plan = make_plan("all-reduce", {}, STEP, TWO)
    new_plan = edited(plan, put("table", group=None, transport=None)).plan(STEP, TWO)
    (table,) = (node for node in new_plan.nodes if node.variable == "table")
    assert (table.group, table.transport) == (None, None)
    assert {node.transport for node in new_plan.nodes if node.variable in ("w", "b")} == {"tcp"}


def test_what_the_command_prints_is_read_too():
    document = json.loads(make_plan("ps", {}, STEP, TWO).model_dump_json())
    document["class"] = document.pop("strategy_class")
    document["slice"] = {"accelerator": "v4", "topology": "2x1x1"}
    plan = read_plan(json.dumps(document), name="plan-mine", where="plan mine.json").plan(STEP, TWO)
    assert (plan.strategy, plan.strategy_class) == ("plan-mine", "exact")


def test_a_plan_of_before_matrices_were_left_out_is_read_as_it_was():
    document = make_plan("ps", {}, STEP, TWO).model_dump(mode="json", exclude={"traffic"})
    document |= {"payload_matrix": [[0, 8], [8, 0]], "pull_matrix": [[0, 8], [0, 0]]}
    plan = read_plan(json.dumps(document), name="plan-mine", where="plan mine.json").plan(STEP, TWO)
    assert plan.traffic == make_plan("ps", {}, STEP, TWO).traffic


def test_numbers_that_follow_a_rule_are_read_in_either_form():
    many = Topology(replicas_per_task=(1,) * 20, batch_size=40)
    table = trainable("w", 40, 4, partitionable_axes=(0,), apart_axes=(0,))
    step = step_of(table)
    plan = make_plan("sharded-ps", {"min_bytes": 1, "max_shards": 20}, step, many)
    document = plan.model_dump(mode="json")
    assert document["replicas_per_task"] == [{"repeat": 1, "times": 20}]
    assert document["nodes"][0]["partition"]["sizes"] == [{"repeat": 2, "times": 20}]
    assert document["nodes"][0]["partition"]["destinations"] == [{"repeat": 0, "times": 20, "step": 1}]
    written_out = {**document, "replicas_per_task": [1] * 20}
    written_out["nodes"] = [
        {**document["nodes"][0], "partition": {"axis": 0, "sizes": [2] * 20, "destinations": [*range(20)]}}
    ]
    for text in map(json.dumps, (document, written_out)):
        edited_plan = read_plan(text, name="plan-mine", where="plan mine.json")
        assert edited_plan.plan(step, many).nodes == plan.nodes


def test_bytes_and_class_follow_from_the_nodes():
    plan = make_plan("ps", {}, STEP, TWO)

    def change(document: Any) -> None:
        document["payload_bytes_per_step"] = 7
        for node in document["nodes"]:
            if node["variable"] in ("w", "w/m", "w/count"):
                node["destination"] = 1
        node_of(document, "w")["compressor"] = {"name": "fp16"}

    new_plan = edited(plan, change).plan(STEP, TWO)
    assert new_plan.strategy_class == "bounded"
    assert new_plan.server_bytes[1] == 240 + 240 + 4
    assert new_plan.payload_bytes_per_step == plan.payload_bytes_per_step - 120
    silent = make_plan("none", {}, STEP, TWO)
    assert edited(silent).strategy.strategy_class == "control"
    assert edited(make_plan("ps", {"sync": False}, STEP, TWO)).strategy.strategy_class == "statistical"
    in_step = make_plan("all-reduce", {}, STEP, TWO)
    assert edited(in_step, put("b", synchronizer="average")).strategy.strategy_class == "statistical"


def test_servers_and_collectives_in_one_plan():
    plan = make_plan("all-reduce", {"transport": "ring"}, STEP, TWO)

    def change(document: Any) -> None:
        put("w", synchronizer="ps", destination=1, group=None, transport=None)(document)
        for name in ("w/m", "w/count"):
            put(name, destination=1)(document)
        put("iteration", destination=0)(document)

    new_plan = edited(plan, change).plan(STEP, TWO)
    assert new_plan.strategy_class == "exact"
    assert new_plan.server_bytes == (4, 240 + 240 + 4)
    assert new_plan.worker_bytes == plan.worker_bytes - sum(new_plan.server_bytes)
    # A ring of two sends as much as a push and a pull.
    assert new_plan.payload_bytes_per_step == plan.payload_bytes_per_step


def test_a_gradient_that_other_updates_read_goes_to_all():
    step = step_of(trainable("w", 4, apart=True, gradient_shared=True))
    plan = make_plan("sharded-update", {}, step, TWO)
    message = (
        r"'w': other updates read its gradient, which all must have, got False; set whole_gradient to true"
    )
    with pytest.raises(StrategyError, match=message):
        edited(plan, put("w", whole_gradient=False)).plan(step, TWO)


def test_a_plan_of_a_users_own_strategy_needs_no_file():
    plan = make_plan("ps", {}, STEP, TWO).model_copy(
        update={"strategy": "mine", "strategy_params": {"depth": 3, "staleness": 2}}
    )
    assert edited(plan).plan(STEP, TWO).strategy_class == "statistical"
    with pytest.raises(StrategyError, match=r"mine.json: staleness=2 needs sync=true, got sync=false"):
        edited(plan.model_copy(update={"strategy_params": {"sync": False, "staleness": 2}}))
    with pytest.raises(StrategyError, match=r"mine.json: strategy 'mine': staleness must be int, got 'many'"):
        edited(plan.model_copy(update={"strategy_params": {"staleness": "many"}}))


def node_of(document: Any, variable: str) -> Any:
    return next(node for node in document["nodes"] if node["variable"] == variable)


def put(variable: str, /, **fields: Any) -> Any:
    return lambda document: node_of(document, variable).update(fields)


def cut(variable: str, /, **fields: Any) -> Any:
    """The variable and its slot in parts, on servers."""

    def change(document: Any) -> None:
        partition = {"axis": 0, "sizes": [6, 6], "destinations": [0, 1], **fields}
        for name in (variable, f"{variable}/m"):
            for node in document["nodes"]:
                if node["variable"] == name:
                    node.update(partition=partition, destination=None, group=None)

    return change


def shared(variable: str, /, owners: Any = (0, 1), owner: Any = None) -> Any:
    """The variable and its slot in halves, each with an owner."""

    def change(document: Any) -> None:
        axis = 1 if variable == "w" else 0
        sizes = [3, 2] if variable == "w" else [5, 5]
        partition = {"axis": axis, "sizes": sizes, "owners": list(owners)}
        for node in document["nodes"]:
            if node["variable"] in (variable, f"{variable}/m"):
                groups = [0, 0] if node["variable"] == variable else None
                node.update(partition={**partition, "groups": groups}, owner=owner, group=None)

    return change


def knobs(**params: Any) -> Any:
    return lambda document: document["strategy_params"].update(params)


def ahead(**params: Any) -> Any:
    """These knobs, and a variable in a collective."""

    def change(document: Any) -> None:
        knobs(**params)(document)
        put("b", synchronizer="all-reduce", destination=None, group=0)(document)

    return change


def twice(document: Any) -> None:
    document["nodes"].append(document["nodes"][0])


def without(document: Any) -> None:
    document["nodes"] = [n for n in document["nodes"] if n["variable"] != "b"]


MISTAKES = {
    "unknown": ("ps", put("w", variable="v"), "'v': must be one of the step's, got none of that name; known"),
    "misspelt": ("ps", put("table", variable="tabel"), "variable 'tabel': .*; did you mean 'table'"),
    "twice": ("ps", twice, "'w': needs one node, got two; drop one"),
    "missing": ("ps", without, "'b': needs a node, got none; add one"),
    "shape": (
        "ps",
        put("w", shape=[12, 6]),
        r"'w': shape must be the captured one, \(12, 5\), got \(12, 6\)",
    ),
    "dtype": (
        "ps",
        put("b", dtype="double"),
        "'b': dtype must be the captured one, float, got double; take it",
    ),
    "sparse": ("ps", put("table", sparse=False), "'table': sparse must be the captured one, True, got False"),
    "task": (
        "ps",
        put("b", destination=2),
        "'b': destination must be a task from 0 to 1, got 2; choose one",
    ),
    "no task": ("ps", put("b", destination=None), "'b': destination must be a task from 0 to 1, got None"),
    "negative task": ("ps", put("b", destination=-1), "must be a task from 0 to 1, got -1"),
    "task of a copy": (
        "all-reduce",
        put("b", destination=0),
        "'b': destination is for what servers hold, got 0 for a trainable of float under all-reduce; set",
    ),
    "slot elsewhere": (
        "ps",
        put("w/m", destination=1),
        "'w/m': destination of a slot must follow 'w', 0, got 1; give it the same",
    ),
    "counter": (
        "ps",
        put("iteration", destination=1),
        "'iteration': destination must be 0, because all updates share it, got 1",
    ),
    "own state": (
        "ps",
        put("seed", destination=0),
        "'seed': destination is for what servers hold, got 0 for",
    ),
    "own state synced": (
        "ps",
        put("seed", synchronizer="ps"),
        "'seed': synchronizer must be none, because nothing of it crosses replicas, got ps",
    ),
    "mixture": (
        "ps",
        put("b", synchronizer="none"),
        "'w': synchronizers must be one, or .*got none, ps; choose",
    ),
    "two ways of collectives": (
        "hierarchical-all-reduce",
        put("b", synchronizer="all-reduce"),
        "'w': synchronizers must be one, or .*got all-reduce, hierarchical-all-reduce; choose",
    ),
    "averaged sum": (
        "local-sgd",
        put("seen", synchronizer="average"),
        "'seen': what replicas add up has no average, got synchronizer average; make it all-reduce",
    ),
    "compressed average": (
        "local-sgd",
        put("w", compressor={"name": "fp16"}),
        "'w': compressor is for a gradient that crosses replicas, got .*fp16.* under average; set it to null",
    ),
    "ring beside servers": (
        "parallax",
        put("w", transport="tcp"),
        "'w': transport tcp waits on a thread that servers need, got ps beside it; use auto",
    ),
    "served beside collectives": (
        "parallax",
        put("table", destination=None),
        "'table': destination must be a task from 0 to 1, got None",
    ),
    "reduced beside servers": (
        "parallax",
        put("w", destination=1),
        "'w': destination is for what servers hold, got 1 for .*; set it to null",
    ),
    "slot apart": (
        "parallax",
        put("w", synchronizer="ps", destination=1, group=None, transport=None),
        "'w/m': destination of a slot must follow 'w', 1, got None",
    ),
    "counter beside collectives": (
        "parallax",
        put("iteration", destination=1),
        "'iteration': destination must be 0, because all updates share it, got 1",
    ),
    "sync beside collectives": (
        "ps",
        ahead(sync=False),
        "sync=false lets workers go ahead of each other, got collectives for variable 'b', where all wait",
    ),
    "staleness beside collectives": ("ps", ahead(staleness=2), "staleness=2 lets workers go ahead"),
    "backup beside collectives": ("ps", ahead(backup=1), "drop backup, or put every variable on a server"),
    "no bucket": (
        "all-reduce",
        put("b", group=None),
        "'b': group must be a bucket from 0, got None",
    ),
    "bucket of rows": (
        "all-reduce",
        put("table", transport=None, group=1),
        "'table': group is for what collectives sum or transport tcp moves, got 1 for a sparse .*; set it to",
    ),
    "rows in no bucket": (
        "all-reduce",
        put("table", group=None),
        "'table': group must be a bucket from 0, got None; choose one",
    ),
    "sum": (
        "ps",
        cut("w", sizes=[6, 5]),
        r"'w': partition.sizes must be .* add up to 12, got \[6, 5\], which",
    ),
    "one part": ("ps", cut("w", sizes=[12]), "'w': partition.sizes must be two or more"),
    "empty part": ("ps", cut("w", sizes=[12, 0]), "each at least 1"),
    "shards": (
        "ps",
        cut("w", axis=1, sizes=[1] * 6),
        "'w': partition: axis 1 has 5 rows.*got 6 parts; use fewer",
    ),
    "axis": ("ps", cut("w", axis=2), r"'w': partition.axis must be an axis of shape \(12, 5\), got 2; keep"),
    "update": (
        "ps",
        cut("table", axis=1, sizes=[2, 2]),
        r"'table': a cut needs an update that is elementwise or .* cut \(node 'Mean' \(Mean\): it is neither",
    ),
    "control flow": (
        "ps",
        cut("b", sizes=[2, 3]),
        "'b': .*no use of the variable in control flow.*keep it whole",
    ),
    "cut state": (
        "ps",
        cut("mean", sizes=[1, 2]),
        "'mean': only trainables that a gradient reaches.*got state",
    ),
    "cut alone": (
        "partitioned-ps",
        put("w/m", partition=None, destination=0),
        "'w/m': partition of a slot must follow 'w', .*'axis': 0.*, got None; give it the same",
    ),
    "places": (
        "ps",
        cut("w", destinations=[0]),
        "'w': partition.destinations needs one for each of 2 sizes, got 1",
    ),
    "place": (
        "ps",
        cut("w", destinations=[0, 2]),
        "partition.destinations must be a task from 0 to 1, got 2",
    ),
    "no groups": (
        "all-reduce",
        cut("w", destinations=None),
        "partition.groups needs one for each of 2 sizes",
    ),
    "groups": (
        "ps",
        cut("w", groups=[0, 1]),
        "'w': partition.groups is for what collectives sum or transport tcp moves, got .0, 1. for",
    ),
    "proxy of rows": (
        "ps",
        put("table", proxy=True),
        "'table': proxy is for a dense variable on a server, got True for a sparse",
    ),
    "proxy of a copy": (
        "all-reduce",
        put("b", proxy=True),
        "'b': proxy is for .*, got True for .*",
    ),
    "integers": (
        "ps",
        put("n", compressor={"name": "fp16"}),
        "'n': compressor is for dense floating gradients.* for a trainable of int32",
    ),
    "transport of rows": (
        "all-reduce",
        put("table", transport="ring", group=None),
        "'table': transport of rows is tcp, or null for TensorFlow's, got ring; use one of these",
    ),
    "transport without GPUs": (
        "all-reduce",
        put("b", transport="nccl"),
        "'b': transport nccl needs GPUs, got",
    ),
    "transport to a server": ("ps", put("b", transport="ring"), "'b': transport is for gradients .*got ring"),
    "transport of what is encoded": (
        "all-reduce",
        put("w", compressor={"name": "fp16"}),
        "'w': transport tcp does not add up half precision, got compressor fp16",
    ),
    "rows": (
        "ps",
        put("table", compressor={"name": "fp16"}),
        "'table': compressor is for dense .* for a sparse trainable",
    ),
    "state": (
        "ps",
        put("mean", compressor={"name": "fp16"}),
        "'mean': compressor is for a gradient that crosses replicas, got .* for a state",
    ),
    "codec": (
        "ps",
        put("w", compressor={"name": "pf16"}),
        "'w': unknown compressor 'pf16'; did you mean 'fp16'",
    ),
    "option": (
        "ps",
        put("w", compressor={"name": "topk"}),
        "'w': compressor topk needs ratio, got null; give",
    ),
    "other option": (
        "ps",
        put("w", compressor={"name": "fp16", "rank": 1}),
        "compressor fp16: takes no rank, got 1; drop it, it is for powersgd",
    ),
    "range": (
        "ps",
        put("w", compressor={"name": "topk", "ratio": 2.0}),
        "ratio must be above 0 and at most 1",
    ),
    "vector": (
        "ps",
        put("b", compressor={"name": "powersgd", "rank": 1}),
        "'b': powersgd takes two axes or more",
    ),
    "owner of another": (
        "sharded-update",
        put("w", owner=2),
        "'w': owner must be a replica from 0 to 1, got 2; choose one",
    ),
    "owner under ps": (
        "ps",
        put("w", owner=0),
        "'w': owner is for a trainable under all-reduce .*got 0 for a trainable of float under ps",
    ),
    "owner of state": (
        "sharded-update",
        put("mean", owner=0),
        "'mean': owner is for a trainable.*got 0 for a state",
    ),
    "owner alone": (
        "sharded-update",
        put("n", owner=0),
        "'n': one replica can update it only if no other.*got one",
    ),
    "owner of what travels small": (
        "sharded-update",
        put("w", compressor={"name": "fp16"}, transport="ring"),
        "'w': compressor is for gradients that all replicas get, not an owner alone, got .*fp16",
    ),
    "slot of another owner": (
        "sharded-update",
        put("w/m", owner=None),
        "'w/m': owner of a slot must follow 'w', 0, got None",
    ),
    "told by nobody": (
        "all-reduce",
        put("b", whole_gradient=True),
        "'b': whole_gradient is for a variable with an owner",
    ),
    "gathered from nobody": (
        "all-reduce",
        put("b", gathered=True),
        "'b': gathered is for an owner's variable that no step reads .*, got True .*; set it to false",
    ),
    "owners": (
        "sharded-update",
        shared("table", owners=[0]),
        "'table': partition.owners needs one for each of 2 sizes, got 1",
    ),
    "owner beside owners": (
        "sharded-update",
        shared("table", owner=0),
        "'table': owner must be null where parts have owners, got 0",
    ),
    "parts that read each other": (
        "sharded-update",
        shared("table"),
        "'table': parts with several owners.*got axis 0",
    ),
    "slot of the whole": (
        "sharded-update",
        shared("w"),
        "'w/count': a slot of another shape than 'w' goes with the whole",
    ),
    "stale": ("ps", knobs(sync=False, staleness=2), "staleness=2 needs sync=true, got sync=false; drop"),
    "backup": (
        "ps",
        knobs(backup=2),
        "backup=2 must be less than the number of workers, got workers=2; lower",
    ),
    "knob": ("ps", knobs(stalenes=2), "unknown parameter 'stalenes'; did you mean 'staleness'"),
    "field": ("ps", put("w", where=1), "nodes.0.where: extra inputs are not permitted, got 1; see"),
    "type": ("ps", put("w", destination="x"), "nodes.0.destination: input should be a valid integer"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_variable_rule_value_and_way_out(mistake):
    strategy, change, message = MISTAKES[mistake]
    plan = make_plan(strategy, {}, STEP, TWO)
    with pytest.raises(StrategyError, match=message) as raised:
        edited(plan, change).plan(STEP, TWO)
    assert str(raised.value).startswith("plan mine.json: ")
    assert ";" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_part_named_like_a_variable():
    step = step_of(*STEP.variables, trainable("w/part_1", 2))
    with pytest.raises(
        StrategyError, match=r"'w': its parts need names of their own, got a variable 'w/part_1'"
    ):
        edited(make_plan("ps", {}, step, TWO), cut("w")).plan(step, TWO)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "mine.json: must be JSON of a plan's size, got Expecting property name"),
        ("[]", "mine.json: must be a JSON object, got list; begin with what"),
        ("[" * 100_000, "mine.json: must be JSON of a plan's size, got maximum recursion depth exceeded"),
        ("9" * 5000, "mine.json: must be JSON of a plan's size, got Exceeds the limit"),
        ('{"nodes": [], "nodes": []}', "mine.json: a key must be given once, got 'nodes' twice; drop one"),
        ("{}", "mine.json: workload: field required"),
    ],
)
def test_what_is_no_plan(text, message):
    with pytest.raises(StrategyError, match=message):
        read_plan(text, name="plan-mine", where="plan mine.json")


def test_a_plan_for_others_says_for_whom():
    plan = edited(make_plan("ps", {}, STEP, TWO))
    three = Topology(replicas_per_task=(1, 1, 1), batch_size=9)
    with pytest.raises(
        UnsupportedError, match=r"for 2 workers of 1 replica, got 3 workers of 1 replica; give"
    ):
        plan.plan(STEP, three)
    with pytest.raises(
        UnsupportedError, match=r"for workload 'hand-made', got 'other'; make one with `strat"
    ):
        plan.plan(STEP.model_copy(update={"workload": "other"}), TWO)


def test_a_rival_has_no_plan_to_edit():
    plan = make_plan("tf-multi-worker-mirrored", {}, STEP, TWO)
    with pytest.raises(StrategyError, match=r"must be of a strategy that rewrites the graph, got 'tf-multi-"):
        edited(plan)


def test_an_owner_of_nothing_is_refused() -> None:
    step = step_of(trainable("w", 4, 2, apart=True), trainable("empty", 0, 2, apart=True))
    plan = make_plan("sharded-update", {"min_bytes": 1000}, step, TWO)
    nodes = [n.model_copy(update={"owner": 0}) if n.variable == "empty" else n for n in plan.nodes]
    text = plan.model_copy(update={"nodes": tuple(nodes)}).model_dump_json()
    says = r"'empty': an owner is for a variable that has elements, got \[0, 2\]; let all replicas update it"
    with pytest.raises(StrategyError, match=says):
        read_plan(text, name="plan-mine", where="plan mine.json").plan(step, TWO)


def on_cores(change: Any, step: Any) -> None:
    """Read an edited plan for cores."""
    topology = Topology(replicas_per_task=(2,), batch_size=8)
    plan = make_plan("tpu-replicate", {"reshard": True}, step, topology)
    edited(plan, change).plan(step, topology)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"synchronizer": "all-reduce", "group": 0, "transport": "auto"},
            "in_parts is for what cores keep, got True for a trainable of float",
        ),
        (
            {"partition": {"axis": 0, "sizes": [6, 6]}},
            "on cores parts are equal and come by in_parts, got a partition; set it to null",
        ),
        ({"transport": "auto"}, "transport is for gradients of collectives, got auto for a trainable"),
        ({"owner": 0}, "owner is for a trainable under all-reduce in a plan without servers, got 0 for"),
        ({"compressor": {"name": "bf16"}}, "compressor is for a gradient that crosses replicas"),
        ({"group": 0}, "group is for what collectives sum or transport tcp moves, got 0 for"),
    ],
)
def test_a_plan_for_cores_is_refused_what_cores_cannot_do(change, line):
    def edit(document):
        document["nodes"][0] |= change

    with pytest.raises(StrategyError) as refused:
        on_cores(edit, step_of(trainable("w", 12, 5, partitionable_axes=(0,))))
    assert f"variable 'w': {line}" in str(refused.value)


def test_what_replicas_do_not_have_alike_lies_in_no_parts():
    step = step_of(trainable("w", 12, 5), state("seed", 2, rule="per-replica"))

    def edit(document):
        document["nodes"][1]["in_parts"] = True

    with pytest.raises(StrategyError, match="'seed': in_parts is for what replicas have alike"):
        on_cores(edit, step)


def test_variables_in_parts_need_a_loop_of_the_host():
    step = step_of(trainable("w", 12, 5))
    topology = Topology(replicas_per_task=(2,), batch_size=8)
    plan = make_plan("tpu-replicate", {"device_loop": True}, step, topology)

    def edit(document):
        document["nodes"][0]["in_parts"] = True

    with pytest.raises(StrategyError, match="during a host loop, got device_loop=true"):
        edited(plan, edit).plan(step, topology)
