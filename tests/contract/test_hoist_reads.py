"""Reads are moved out of functions and merged: each variable is read once in a step."""

from collections import Counter
from dataclasses import replace

import pytest

from strategies.ir.graph import Arg, DType, Function, FunctionRef, Graph, Node, Shape, producer
from strategies.ir.graph_rules import verify
from strategies.ir.train_graph import Loss, TrainGraph
from strategies.ir.variable import Variable

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.passes.pass_order import passes_of
from strategies.passes.replicate.hoist_reads import hoisted as with_hoisted_reads
from strategies.planner import topology_of
from strategies.tf_bridge.graphdef import graphdef_from_graph
from strategies.topology import Topology

FLOAT, INT32, RESOURCE = DType("float"), DType("int32"), DType("resource")
ALONE = Topology(replicas_per_task=(1,), batch_size=2)


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def step(*nodes, functions=()):
    variables = tuple(
        Variable(
            name=name,
            kind="trainable",
            group="trainable",
            dtype=FLOAT,
            shape=Shape((2, 2)),
            handle=name,
            placeholder=f"{name}/initial",
            load=f"{name}/load",
            read=f"{name}/read",
        )
        for name in ("v",)
    )
    access = [
        n
        for v in variables
        for n in (
            node(v.handle, "VarHandleOp", dtype=FLOAT, shape=v.shape),
            node(v.placeholder, "Placeholder", dtype=FLOAT),
            node(v.load, "AssignVariableOp", v.handle, v.placeholder, dtype=FLOAT),
            read(v.read, v.handle),
        )
    ]
    graph = Graph(nodes=(*access, *nodes), functions={f.name: f for f in functions})
    return TrainGraph(
        graph=graph,
        variables=variables,
        boundaries=(),
        regions=(),
        batch=(),
        losses=(Loss(tensor=nodes[-1].name),),
    )


def read(name, *inputs):
    return node(name, "ReadVariableOp", *inputs, dtype=FLOAT)


def function(name, *nodes, result, args=("v",), types=(RESOURCE,), out=FLOAT):
    return Function(
        name=name,
        inputs=tuple(Arg(name=a, dtype=t) for a, t in zip(args, types, strict=True)),
        outputs=(Arg(name="out", dtype=out),),
        nodes=nodes,
        results={"out": result},
    )


def call(name, callee, *inputs, out=FLOAT):
    attrs = {"Tin": (RESOURCE,) * len(inputs), "Tout": (out,), "f": FunctionRef(callee)}
    return node(name, "StatefulPartitionedCall", *inputs, **attrs)


def hoisted(before):
    after = with_hoisted_reads(before)
    verify(after.graph)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graphdef_from_graph(after.graph), name="")
    return after


def reads(step):
    own = {v.read for v in step.variables}
    return [n.name for n in step.graph.nodes if n.op == "ReadVariableOp" and n.name not in own]


def add(name, *inputs):
    return node(name, "AddV2", *inputs, T=FLOAT)


def test_nothing_to_do_gives_the_same_object():
    before = step(read("r", "v"))
    assert with_hoisted_reads(before) is before


def test_equal_reads_are_merged_even_if_they_wait_for_something():
    before = step(
        node("check", "NoOp"), read("a", "v"), read("b", "v", "^check"), add("sum", "a", "b", "^a", "^b")
    )
    after = hoisted(before)
    assert reads(after) == ["a"]
    assert after.graph.by_name["sum"].inputs == ("a", "a", "^a")


def test_a_read_that_waits_for_a_write_stays():
    before = step(
        read("a", "v"),
        read("a2", "v"),
        node("w", "AssignAddVariableOp", "v", "a2", dtype=FLOAT),
        node("then", "NoOp", "^w"),
        read("b", "v", "^then"),
        add("sum", "a", "b"),
    )
    after = hoisted(before)
    assert reads(after) == ["a", "b"]
    assert after.graph.by_name["sum"].inputs == ("a", "b")


def test_reads_leave_functions_and_functions_that_these_call():
    inner = function("inner", read("r", "v"), result="r:value:0")
    outer = function("outer", call("c", "inner", "v"), result="c:output:0")
    after = hoisted(
        step(call("x", "outer", "v"), call("y", "outer", "v"), add("sum", "x", "y"), functions=(inner, outer))
    )
    assert len(reads(after)) == 1
    assert not any(n.op == "ReadVariableOp" for f in after.graph.functions.values() for n in f.nodes)
    assert all(a.dtype == FLOAT for f in after.graph.functions.values() for a in f.inputs)


def test_a_variable_that_a_function_assigns_is_not_hoisted():
    writes = function(
        "writes",
        read("r", "v"),
        node("w", "AssignVariableOp", "v", "r:value:0", dtype=FLOAT),
        result="r:value:0",
    )
    before = step(call("x", "writes", "v"), functions=(writes,))
    assert with_hoisted_reads(before) is before


def test_a_variable_that_a_call_hands_on_is_read_where_the_call_takes_it():
    forward = function("forward", node("i", "Identity", "v", T=RESOURCE), result="i:output:0", out=RESOURCE)
    backward = function(
        "backward",
        node("shape", "VariableShape", "v", out_type=INT32),
        read("r", "v"),
        result="r:value:0",
    )
    before = step(
        call("x", "forward", "v", out=RESOURCE), call("y", "backward", "x"), functions=(forward, backward)
    )
    after = hoisted(before)
    assert reads(after) == ["x/hoisted_0"]
    assert after.graph.by_name["y"].attrs["Tin"] == (FLOAT,)
    bodies = Counter(n.op for f in after.graph.functions.values() for n in f.nodes)
    assert bodies == {"Identity": 1, "Shape": 1}


def test_a_call_that_hands_a_variable_to_a_writer_keeps_it():
    forward = function("forward", node("i", "Identity", "v", T=RESOURCE), result="i:output:0", out=RESOURCE)
    before = step(
        call("x", "forward", "v", out=RESOURCE),
        node("w", "AssignVariableOp", "x", "v/initial", dtype=FLOAT),
        functions=(forward,),
    )
    assert with_hoisted_reads(before) is before


def test_a_lookup_in_a_function_becomes_one_in_the_value():
    looks = function(
        "looks",
        node("ids", "Const", dtype=INT32, value=_int32_vector()),
        node("g", "ResourceGather", "v", "ids:output:0", dtype=FLOAT, Tindices=INT32, batch_dims=0),
        result="g:output:0",
    )
    after = hoisted(step(call("x", "looks", "v"), functions=(looks,)))
    (body,) = after.graph.functions.values()
    assert [n.op for n in body.nodes] == ["Const", "Const", "GatherV2"]


def test_a_read_in_a_loop_of_the_first_kind_leaves_it():
    enter = node("e", "Enter", "v", T=RESOURCE, frame_name=b"loop", is_constant=True)
    body = function("body", enter, read("r", "e:output:0"), result="r:value:0")
    after = hoisted(step(call("x", "body", "v"), functions=(body,)))
    assert len(reads(after)) == 1
    (result,) = after.graph.functions.values()
    assert [(n.op, n.attrs["T"]) for n in result.nodes] == [("Enter", FLOAT)]


def test_what_reads_in_a_branch_of_the_first_kind_leaves_it_in_a_function_too():
    body = function(
        "body",
        node("s", "Switch", "v", "p", T=RESOURCE),
        read("r", "s:output_true:0"),
        result="r:value:0",
        args=("v", "p"),
        types=(RESOURCE, DType("bool")),
    )
    predicate = node("p", "Placeholder", dtype=DType("bool"))
    value = node(
        "x",
        "StatefulPartitionedCall",
        "v",
        "p",
        Tin=(RESOURCE, DType("bool")),
        Tout=(FLOAT,),
        f=FunctionRef("body"),
    )
    after = hoisted(step(predicate, value, functions=(body,)))
    assert len(reads(after)) == 1
    (result,) = after.graph.functions.values()
    assert [(n.op, n.attrs["T"]) for n in result.nodes] == [("Switch", FLOAT)]


def in_loop(*inside):
    """A loop of the first kind among a step's nodes, which takes the variable, and its Exit."""
    frame = {"frame_name": b"loop", "parallel_iterations": 1}
    boolean = DType("bool")
    return (
        node("start", "Placeholder", dtype=INT32),
        node("e", "Enter", "v", T=RESOURCE, is_constant=True, **frame),
        node("n", "Enter", "start", T=INT32, is_constant=False, **frame),
        node("m", "Merge", "n", "next", T=INT32, N=2),
        node("cast", "Cast", "m", SrcT=INT32, DstT=boolean, Truncate=False),
        node("more", "LoopCond", "cast"),
        node("s", "Switch", "m", "more", T=INT32),
        *inside,
        node("next", "NextIteration", "s:1", *(f"^{n.name}" for n in inside), T=INT32),
        node("exit", "Exit", "s", T=INT32),
    )


def test_every_kind_of_read_leaves_a_loop_of_the_first_kind_among_the_nodes_of_a_step():
    inside = (
        read("r", "e", "^s"),
        node("shape", "VariableShape", "e", out_type=INT32),
        node("rows", "ResourceGather", "e", "s:1", dtype=FLOAT, Tindices=INT32, batch_dims=0),
        node("one", "ResourceGatherNd", "e", "shape", dtype=FLOAT, Tindices=INT32),
    )
    assign = node("w", "AssignAddVariableOp", "v", "v/initial", "^exit", dtype=FLOAT)
    after = hoisted(step(*in_loop(*inside), assign, node("done", "NoOp", "^w")))
    assert reads(after) == ["e/hoisted_0"]
    by_name = after.graph.by_name
    assert by_name["e"].attrs["T"] == FLOAT
    assert [by_name[n.name].op for n in inside] == ["Identity", "Shape", "GatherV2", "GatherNd"]
    # In the frame of the loop, which a constant owes to what it waits for.
    assert by_name["rows/axis"].inputs == ("^e",)
    assert by_name["w"].control_inputs == ("exit", "e/hoisted_0")
    assert by_name["v/load"].control_inputs == ()


def test_a_variable_that_a_loop_of_the_first_kind_assigns_is_not_hoisted():
    before = step(*in_loop(node("w", "AssignVariableOp", "e", "v/initial", dtype=FLOAT)))
    assert with_hoisted_reads(before) is before


def test_a_function_promises_no_read_that_left_it():
    body = replace(
        function("body", read("r", "v"), node("other", "NoOp"), result="r:value:0"),
        control_outputs=("r", "other"),
        control_results={"other": "other", "r": "r"},
    )
    after = hoisted(step(call("x", "body", "v"), functions=(body,)))
    (result,) = graphdef_from_graph(after.graph).library.function
    assert list(result.signature.control_output) == list(result.control_ret) == ["other"]


def _int32_vector():
    from strategies.ir.tensor_proto import const

    return const("c", INT32, (0, 1)).attrs["value"]


def test_a_language_model_reads_each_dense_variable_once(cases):
    case = cases.of("word-lm", "adam")
    after = with_hoisted_reads(case.step)
    verify(after.graph)
    update = after.update_nodes()
    sparse = {b.variable for b in after.gradients() if b.indices is not None}
    handles = {v.handle: v.name for v in after.variables if v.kind == "trainable" and v.name not in sparse}
    own = {v.read for v in after.variables}
    counted = Counter(
        handles[n.inputs[0]]
        for n in after.graph.nodes
        if n.op == "ReadVariableOp" and n.inputs[0] in handles and n.name not in update | own
    )
    assert set(counted.values()) == {1}
    assert not any(n.op == "ReadVariableOp" for f in after.graph.functions.values() for n in f.nodes)


@pytest.mark.parametrize("model", ["shared-embedding", "summed"])
def test_the_table_of_an_embedding_layer_is_looked_up_and_not_read(cases, model):
    case = cases.model(model)
    (table,) = {b.variable for b in case.step.gradients() if b.indices is not None}
    variable = next(v for v in case.step.variables if v.name == table)
    graph, update = case.step.graph, case.step.update_nodes()
    users = [n for n in graph.consumers[variable.handle] if n.name not in update | set(variable.access)]
    assert "ResourceGather" in {n.op for n in users}
    producers = {producer(ref) for n in graph.nodes for ref in n.data_inputs}
    assert not [n.name for n in users if n.op == "ReadVariableOp" and n.name in producers]


def test_a_server_sends_the_rows_of_an_embedding_layer_and_not_its_table(cases):
    case = cases.model("shared-embedding")
    (table,) = {b.variable for b in case.step.gradients() if b.indices is not None}
    plan = case.plan("ps", (1, 1))
    step = case.step
    for rewrite in passes_of(plan, 1):
        step = rewrite.apply(step, topology_of(plan))
    handle = next(v.handle for v in step.variables if v.name == table)
    own = {v.read for v in step.variables}
    read = {n.name for n in step.graph.consumers[handle] if n.op == "ReadVariableOp"} - own
    crossing = [n for n in step.graph.nodes if not read.isdisjoint(map(producer, n.data_inputs))]
    assert not crossing
