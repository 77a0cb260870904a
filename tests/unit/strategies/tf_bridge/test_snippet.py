import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.graph_rules import verify
from strategies.tf_bridge.graphdef import graphdef_from_graph
from strategies.tf_bridge.snippet import SnippetError, TensorSpec, trace

FLOAT = TensorSpec(dtype=DType("float"), shape=Shape((-1,)))


def axpy(x, y, *, factor):
    return {"sum": x * factor + y, "x": x}


def feed(name):
    return Node(name=name, op="Placeholder", attrs={"dtype": DType("float"), "shape": Shape((-1,))})


def run(nodes, fetches, feeds):
    graph = Graph(nodes=tuple(nodes))
    verify(graph)
    with tf.Graph().as_default() as built:
        tf.compat.v1.import_graph_def(graphdef_from_graph(graph), name="")
        with tf.compat.v1.Session(graph=built) as session:
            return session.run(fetches, feeds)


def named(ref):
    return ref if ":" in ref else f"{ref}:0"


def test_a_snippet_computes_what_the_function_does():
    snippet = trace(axpy, (FLOAT, FLOAT), factor=2.0)
    first, (sum1, x1) = snippet.splice("one/", ["a", "b"])
    second, (sum2, _) = snippet.splice("two/", [sum1, "a"], device="/device:CPU:0")
    assert x1 == "a"
    assert {node.device for node in second} == {"/device:CPU:0"}
    values = run(
        [feed("a"), feed("b"), *first, *second],
        [named(sum1), named(sum2)],
        {"a:0": [1.0, 2.0], "b:0": [10.0, 20.0]},
    )
    assert [value.tolist() for value in values] == [[12.0, 24.0], [25.0, 50.0]]


def test_traced_once_for_equal_arguments():
    assert trace(axpy, (FLOAT, FLOAT), factor=2.0) is trace(axpy, (FLOAT, FLOAT), factor=2.0)
    assert trace(axpy, (FLOAT, FLOAT), factor=2.0) is not trace(axpy, (FLOAT, FLOAT), factor=3.0)


def test_equal_arguments_of_other_types_are_traced_apart():
    def scaled(x, *, factor):
        return x * 2.0 if isinstance(factor, float) else x

    assert len(trace(scaled, (FLOAT,), factor=1.0).nodes) > len(trace(scaled, (FLOAT,), factor=1).nodes)


def test_outputs_beyond_the_first_and_inputs_that_are():
    def split(x):
        return tf.unique(x)

    snippet = trace(split, (FLOAT,))
    assert snippet.outputs == ("Unique", "Unique:1")
    nodes, outputs = snippet.splice("s/", ["a:2"])
    assert nodes[0].inputs == ("a:2",)
    assert outputs == ("s/Unique", "s/Unique:1")


def test_control_holds_back_every_node():
    def noisy(x):
        return x + tf.constant(1.0), tf.stack([2.0, tf.reduce_sum(tf.random.normal([2]))])

    snippet = trace(noisy, (FLOAT,))
    nodes, _ = snippet.splice("s/", ["a"], control=["gate"])
    waiting = {"gate"}
    for node in nodes:
        assert waiting & {ref.lstrip("^").split(":")[0] for ref in node.inputs}, node
        waiting.add(node.name)
    assert not any("^gate" in node.inputs for node in snippet.splice("s/", ["a"])[0])


def test_control_dependencies_on_inputs_lead_to_their_producers():
    def late(x):
        with tf.control_dependencies([x]):
            return tf.constant(1.0), tf.no_op("last")

    nodes, outputs = trace(late, (FLOAT,)).splice("s/", ["a:1"])
    assert {node.inputs for node in nodes} == {("^a",)}
    assert outputs == ("s/Const", "^s/last")


def test_loops_and_branches_work_and_have_frames_of_their_own():
    def powers(x):
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), (0, x))
        return tf.cond(tf.reduce_sum(y) > 20.0, lambda: y, lambda: -y)

    snippet = trace(powers, (FLOAT,))
    first, (one,) = snippet.splice("one/", ["a"])
    second, (two,) = snippet.splice("two/", ["a"])
    frames = [{n.attrs["frame_name"] for n in nodes if n.op == "Enter"} for nodes in (first, second)]
    assert frames[0].isdisjoint(frames[1])
    values = run([feed("a"), *first, *second], [named(one), named(two)], {"a:0": [2.0, 3.0]})
    assert [value.tolist() for value in values] == [[16.0, 81.0]] * 2
    assert tf.compat.v1.control_flow_v2_enabled()


def test_library_functions_are_refused():
    with pytest.raises(SnippetError, match="one flat graph"):
        trace(tf.function(lambda x: x + 1.0).__call__, (FLOAT,))


def test_other_results_are_refused():
    with pytest.raises(SnippetError, match="got float"):
        trace(lambda x: 1.0, (FLOAT,))


def test_the_number_of_inputs_is_checked():
    with pytest.raises(SnippetError, match="takes 2 inputs, got 1"):
        trace(axpy, (FLOAT, FLOAT), factor=2.0).splice("s/", ["a"])


def test_tracing_starts_no_eager_context():
    program = """
import tensorflow as tf
from strategies.ir.graph import DType
from strategies.tf_bridge.snippet import TensorSpec, trace

def fn(x):
    y = tf.map_fn(lambda row: row * 2.0, x)
    y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * y), (0, y))[1]
    return tf.cond(tf.reduce_sum(y) > 0.0, lambda: tf.random.stateless_normal([2], [1, 2]), lambda: y[0])

trace(fn, (TensorSpec(dtype=DType("float")),))
# Refused as soon as the context has been initialized.
tf.config.threading.set_inter_op_parallelism_threads(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
