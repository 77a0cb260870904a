""" """

from dataclasses import replace

import pytest

from strategies.errors import CaptureError
from strategies.ir.assembly.assemble import assemble
from strategies.ir.assembly.split import slot_owners, used_gradients
from strategies.ir.assembly.traced import TracedGradient, TracedStep, TracedVariable
from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.graph_rules import verify
from strategies.ir.train_graph import BatchInput

FLOAT, INT64 = DType("float"), DType("int64")
STATEFUL = frozenset(
    {"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "PrintV2"}
)


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def variable(name, **changes):
    plain = TracedVariable(
        name=name,
        placeholder=f"{name}_handle",
        dtype=FLOAT,
        shape=Shape((2,)),
        trainable=True,
        optimizer_owned=False,
    )
    return replace(plain, **changes)


# loss = x · w; its gradient g; w −= rate · g, and a slot m += g.
FORWARD = (
    node("x", "Placeholder", dtype=FLOAT),
    node("w_handle", "Placeholder", dtype=DType("resource")),
    node("m_handle", "Placeholder", dtype=DType("resource")),
    node("n_handle", "Placeholder", dtype=DType("resource")),
    node("read", "ReadVariableOp", "w_handle", dtype=FLOAT),
    node("loss", "Mul", "x", "read", T=FLOAT),
    node("back", "Mul", "x", "x", T=FLOAT),
    node("g", "Identity", "back", T=FLOAT),
)
UPDATE = (
    node("rate", "Const", dtype=FLOAT),
    node("scaled", "Mul", "g", "rate", T=FLOAT),
    node("step", "AssignSubVariableOp", "w_handle", "scaled", "^read", dtype=FLOAT),
    node("slot", "AssignAddVariableOp", "m_handle", "g", dtype=FLOAT),
)


def traced(*nodes, variables=(), must_run=("step", "slot"), marks=()):
    return TracedStep(
        graph=Graph(nodes=(*FORWARD, *UPDATE, *nodes)),
        constants={},
        variables=(
            variable("w"),
            variable("m", trainable=False, optimizer_owned=True, slot_of="w", group="momentums"),
            *variables,
        ),
        marks=(TracedGradient(call=0, variable="w", values="g", indices=None), *marks),
        batch=(BatchInput(path="0", node="x", dtype=FLOAT, shape=Shape((-1, 2))),),
        loss="loss",
        must_run=must_run,
        stateful_ops=STATEFUL,
    )


def test_the_parts_of_a_plain_step():
    step = assemble(traced())
    verify(step.graph)
    assert [(v.name, v.kind, v.slot_of, v.group) for v in step.variables] == [
        ("w", "trainable", None, "trainable"),
        ("m", "slot", "w", "momentums"),
    ]
    assert [(b.variable, b.values, b.role) for b in step.boundaries] == [("w", "g", "gradient")]
    (region,) = step.regions
    assert region.nodes == ("rate", "scaled", "step", "slot")
    assert region.targets == ("step", "slot")
    assert step.readiness == {"w": 0}
    assert not {"w_handle", "m_handle"} & set(step.graph.by_name)


def test_an_assignment_without_data_from_the_gradient_waits_for_it():
    decay = node("decay", "AssignSubVariableOp", "w_handle", "rate", dtype=FLOAT)
    step = assemble(traced(decay, must_run=("decay", "step", "slot")))
    assert step.graph.by_name["decay"].control_inputs == ("g",)
    assert step.graph.by_name["step"].control_inputs == ("read",)
    assert "decay" in step.regions[0].nodes
    assert step.shared_update == ()


def test_what_several_updates_need_is_held_once():
    second = (
        node("g2", "Identity", "back", T=FLOAT),
        node("scaled2", "Mul", "g2", "rate", T=FLOAT),
        node("step2", "AssignSubVariableOp", "n_handle", "scaled2", dtype=FLOAT),
    )
    mark = TracedGradient(call=0, variable="n", values="g2", indices=None)
    step = assemble(
        traced(*second, variables=(variable("n"),), must_run=("step", "slot", "step2"), marks=(mark,))
    )
    assert {r.variable: r.nodes for r in step.regions} == {
        "w": ("scaled", "step", "slot"),
        "n": ("scaled2", "step2"),
    }
    assert step.shared_update == ("rate",)
    assert step.update_nodes() == {"rate", "scaled", "step", "slot", "scaled2", "step2"}


def test_trainables_whose_names_flatten_alike_keep_their_own_slots():
    # The optimizer tells whose slot m is; by its name it could be the other one's.
    step = traced()
    named = [replace(v, name={"w": "a/b", "n": "a_b"}.get(v.name, v.name)) for v in step.variables]
    named = [replace(v, slot_of="a/b") if v.name == "m" else v for v in named]
    named.append(variable("a_b", placeholder=None))
    marks = tuple(replace(m, variable="a/b") for m in step.marks)
    assembled = assemble(replace(step, variables=tuple(named), marks=marks))
    (slot,) = (v for v in assembled.variables if v.kind == "slot")
    assert (slot.slot_of, slot.group) == ("a/b", "momentums")


@pytest.mark.parametrize(
    ("tail", "owner", "group"),
    [("dense_1_kernel_m", "dense_1/kernel", "m"), ("dense_v", "dense", "v"), ("other", None, "other")],
)
def test_a_slot_belongs_to_the_longest_name_that_its_own_starts_with(tail, owner, group):
    names = ("dense", "dense_1/kernel", "kernel")
    variables = [variable(name) for name in names] + [variable(f"adam/{tail}")]
    kinds = dict.fromkeys(names, "trainable") | {f"adam/{tail}": "slot"}
    assert slot_owners(variables, kinds)[f"adam/{tail}"] == (owner, group)


def owner_of(*nodes, shape=(2,), writes=("other",)):
    """The owner and the group of a slot that an update names `a/n__1`, beside updates of w and v."""
    more = (
        node("v_handle", "Placeholder", dtype=DType("resource")),
        node("g2", "Identity", "back", T=FLOAT),
        node("step2", "AssignSubVariableOp", "v_handle", "g2", dtype=FLOAT),
        *nodes,
    )
    own = variable("a/n__1", placeholder="n_handle", trainable=False, shape=Shape(shape))
    mark = TracedGradient(call=0, variable="v", values="g2", indices=None)
    step = assemble(
        traced(
            *more,
            variables=(variable("v"), own),
            must_run=("step", "slot", "step2", *writes),
            marks=(mark,),
        )
    )
    return next((v.slot_of, v.group) for v in step.variables if v.name == "a/n__1")


OLD = node("old", "ReadVariableOp", "n_handle", dtype=FLOAT)


def written(*inputs):
    """A slot's own average with a value."""
    return (
        OLD,
        node("new", "AddN", "old", *inputs, T=FLOAT, N=1 + len(inputs)),
        node("other", "AssignVariableOp", "n_handle", "new", "^old", dtype=FLOAT),
    )


AFTER = node("after", "ReadVariableOp", "w_handle", "^step", dtype=FLOAT)
SLOT = node("moment", "ReadVariableOp", "m_handle", "^slot", dtype=FLOAT)
NORMS = (
    node("norm", "L2Loss", "g", T=FLOAT),
    node("norm2", "L2Loss", "g2", T=FLOAT),
    node("norms", "AddN", "norm", "norm2", T=FLOAT, N=2),
)


@pytest.mark.parametrize(
    ("nodes", "owner"),
    [
        (written("g"), "w"),
        ((AFTER, *written("after")), "w"),
        ((SLOT, *written("moment")), "w"),
        ((*NORMS, node("clipped", "Mul", "g2", "norms", T=FLOAT), *written("clipped")), "v"),
        (written("g", "g2"), None),
        ((*NORMS, *written("norms")), None),
    ],
    ids=["gradient", "updated", "slot", "clipped", "both", "norm"],
)
def test_a_slot_that_no_name_tells_of_belongs_to_what_it_is_made_of(nodes, owner):
    assert owner_of(*nodes) == (owner, "n" if owner else "n__1")


def test_a_slot_of_another_shape_belongs_to_nobody():
    assert owner_of(*written("g"), shape=(3,)) == (None, "n__1")


def test_forward_values_that_the_update_reads_are_copied_for_it():
    shared = node("shared", "ReadVariableOp", "n_handle", dtype=FLOAT)
    used = (
        node("loss2", "Mul", "loss", "shared", T=FLOAT),
        node("more", "AssignSubVariableOp", "w_handle", "scaled2", dtype=FLOAT),
        node("scaled2", "Mul", "g", "shared", T=FLOAT),
    )
    trace = traced(
        shared, *used, variables=[variable("n", trainable=False)], must_run=("step", "slot", "more")
    )
    step = assemble(replace(trace, loss="loss2"))
    assert step.graph.by_name["scaled2"].inputs == ("g", "update/shared")
    assert step.graph.by_name["loss2"].inputs == ("loss", "shared")


def test_the_update_must_not_read_the_batch():
    used = (
        node("scaled2", "Mul", "g", "loss", T=FLOAT),
        node("more", "AssignSubVariableOp", "w_handle", "scaled2", dtype=FLOAT),
    )
    with pytest.raises(CaptureError, match="got 'loss', which depends on the batch"):
        assemble(traced(*used, must_run=("step", "slot", "more")))


def test_colocations_go_and_identities_of_several_values_come_apart():
    tied = (
        node("both", "IdentityN", "g", "rate", T=(FLOAT, FLOAT)),
        node("second", "Mul", "both:1", "both", T=FLOAT, _class=(b"loc:@read",)),
        node("more", "AssignSubVariableOp", "w_handle", "second", dtype=FLOAT),
    )
    step = assemble(traced(*tied, must_run=("step", "slot", "more")))
    assert step.graph.by_name["second"].inputs == ("both/1", "both")
    assert not any("_class" in n.attrs for n in step.graph.nodes)


def state(*nodes, dtype=FLOAT, must_run=("count",)):
    counted = variable("n", trainable=True, dtype=dtype)
    return assemble(traced(*nodes, variables=[counted], must_run=("step", "slot", *must_run)))


def rule_of(step):
    return next((v.kind, v.rule) for v in step.variables if v.name == "n")


ONE = node("one", "Const", dtype=FLOAT)
READ = node("old", "ReadVariableOp", "n_handle", dtype=FLOAT)


@pytest.mark.parametrize(
    ("nodes", "dtype", "rule"),
    [
        ((ONE, node("count", "AssignAddVariableOp", "n_handle", "one", dtype=FLOAT)), FLOAT, "sum"),
        ((ONE, node("count", "AssignAddVariableOp", "n_handle", "one", dtype=INT64)), INT64, "first-replica"),
        ((node("count", "AssignAddVariableOp", "n_handle", "x", dtype=INT64),), INT64, "sum"),
        ((node("count", "AssignVariableOp", "n_handle", "x", dtype=FLOAT),), FLOAT, "mean"),
        ((node("count", "AssignVariableOp", "n_handle", "x", dtype=INT64),), INT64, "first-replica"),
        (
            (
                READ,
                node("total", "AddV2", "old", "x", T=FLOAT),
                node("count", "AssignVariableOp", "n_handle", "total", "^old", dtype=FLOAT),
            ),
            FLOAT,
            "sum",
        ),
        (
            (
                READ,
                node("towards", "Sub", "old", "x", T=FLOAT),
                node("count", "AssignSubVariableOp", "n_handle", "towards", dtype=FLOAT),
            ),
            FLOAT,
            "mean",
        ),
    ],
)
def test_the_rule_of_forward_state_follows_from_how_it_is_written(nodes, dtype, rule):
    step = state(*nodes, dtype=dtype)
    assert rule_of(step) == ("state", rule)
    (boundary,) = (b for b in step.boundaries if b.role == "state")
    assert (boundary.variable, boundary.rule) == ("n", rule)
    assert "count" in step.state_targets


def test_effects_are_told_from_state_and_nothing_waits_for_them():
    output = node("shown", "PrintV2", "loss")
    count = node("count", "AssignVariableOp", "n_handle", "x", "^shown", dtype=FLOAT)
    step = state(output, count, must_run=("shown", "count"))
    assert step.effects == ("shown",)
    assert step.state_targets == ("count",)
    assert "shown" not in step.graph.by_name["count"].control_inputs


def test_of_gradients_those_are_used_that_something_needs():
    idle = (node("g2", "Identity", "back", T=FLOAT), node("g3", "Identity", "back", T=FLOAT))
    graph = Graph(nodes=(*FORWARD, *UPDATE, *idle))
    marks = (
        TracedGradient(call=0, variable="w", values="g", indices=None),
        TracedGradient(call=1, variable="w", values="g2", indices="g3"),
    )
    assert used_gradients(graph, marks, ("step", "slot")) == marks[:1]
    assert used_gradients(graph, marks, ("step", "g3")) == marks


def test_of_nested_gradient_calls_the_outermost_is_the_boundary():
    # Call 1's gradient g is computed from inner, which is call 0's.
    nodes = [
        n if n.name != "back" else node("back", "Mul", "x", "inner", T=FLOAT) for n in (*FORWARD, *UPDATE)
    ]
    nodes.insert(6, node("inner", "Identity", "x", T=FLOAT))
    step = replace(
        traced(),
        graph=Graph(nodes=tuple(nodes)),
        marks=(
            TracedGradient(call=0, variable="w", values="inner", indices=None),
            TracedGradient(call=1, variable="w", values="g", indices=None),
        ),
    )
    assert [b.values for b in assemble(step).boundaries] == ["g"]
