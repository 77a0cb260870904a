"""A step rewritten in float64 imports, runs, and computes what the same step built in float64 computes."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.errors import StrategyError
from strategies.ir.graph import DType, Graph, Node
from strategies.ir.graph_rules import verify
from strategies.tf_bridge.float64 import Float64Error, to_float64
from strategies.tf_bridge.graphdef import graph_from_graphdef, graphdef_from_graph

DOUBLE = DType("double")
NARROW = {"half", "bfloat16", "float", "complex64"}


def run(graph, fetches, feeds, variables=None):
    """Values of fetches after the variables, handle name → value, have been assigned."""
    verify(graph)
    with tf.Graph().as_default() as built:
        tf.compat.v1.import_graph_def(graphdef_from_graph(graph), name="")
        assigns = []
        values = {}
        for name, value in (variables or {}).items():
            placeholder = tf.compat.v1.placeholder(value.dtype, value.shape)
            assigns.append(
                tf.raw_ops.AssignVariableOp(resource=built.get_tensor_by_name(f"{name}:0"), value=placeholder)
            )
            values[placeholder] = value
        with tf.compat.v1.Session(graph=built) as session:
            session.run(assigns, values)
            return session.run(fetches, feeds)


def captured(step, *specs):
    """Graph of a traced step with its variables as nodes, fetches, and initial values by handle."""
    concrete = tf.function(step).get_concrete_function(*specs)
    graph = graph_from_graphdef(concrete.graph.as_graph_def())
    variables, handles = {}, {}
    by_handle = {id(v.handle): v for v in concrete.graph.variables}
    for outer, inner in concrete.graph.captures:
        variable = by_handle[id(outer)]
        name = inner.op.name
        variables[name] = variable.numpy()
        handles[name] = {
            "dtype": DType(variable.dtype.name.replace("float32", "float").replace("float64", "double")),
            "shape": graph_shape(variable.shape),
            "shared_name": name.encode(),
            "container": b"",
        }
    nodes = (
        Node(name=n.name, op="VarHandleOp", attrs=handles[n.name]) if n.name in handles else n
        for n in graph.nodes
    )
    fetches = [output.name for output in concrete.outputs]
    feeds = [t.name for t in concrete.inputs[: len(specs)]]
    return graph.with_nodes(nodes), fetches, feeds, variables


def graph_shape(shape):
    from strategies.ir.graph import Shape

    return Shape(tuple(shape.as_list()))


def widened(values):
    return {
        name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in values.items()
    }


def types_left(graph):
    """Nodes that still have a narrow floating type in an attribute."""
    bodies = [graph.nodes, *(f.nodes for f in graph.functions.values())]
    names = set()
    for node in (node for body in bodies for node in body):
        for attr in node.attrs.values():
            if any(
                isinstance(a, DType) and a in NARROW for a in (attr if isinstance(attr, tuple) else (attr,))
            ):
                names.add(node.op)
    return names


def keras_step():
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    image = keras.Input((8, 8, 3))
    words = keras.Input((5,), dtype="int32")
    x = keras.layers.Conv2D(4, 3, activation="relu")(image)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    y = keras.layers.Embedding(11, 6)(words)
    y = keras.layers.LSTM(7)(y)
    model = keras.Model([image, words], keras.layers.Dense(3)(keras.layers.Concatenate()([x, y])))

    def step(images, ids, labels):
        with tf.GradientTape() as tape:
            logits = model([images, ids], training=True)
            draws = tf.random.stateless_uniform(tf.shape(logits), [1, 2])
            logits = tf.where(draws > 0.3, logits / 0.7, tf.zeros_like(logits))
            normed, _, _ = tf.compat.v1.nn.fused_batch_norm(images, [1.0, 2.0, 0.5], [0.0, 0.5, 1.0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss += tf.reduce_mean(normed * images)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    return captured(
        step,
        tf.TensorSpec([None, 8, 8, 3], tf.float32),
        tf.TensorSpec([None, 5], tf.int32),
        tf.TensorSpec([None], tf.int32),
    )


def test_a_keras_step_runs_in_float64_and_agrees_with_float32():
    graph, fetches, feeds, variables = keras_step()
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, 8, 8, 3)).astype(np.float32)
    batch = [images, rng.integers(0, 11, (6, 5)), rng.integers(0, 3, 6)]
    narrow = run(graph, fetches, dict(zip(feeds, batch, strict=True)), variables)
    wide_graph = to_float64(graph)
    wide = run(
        wide_graph,
        fetches,
        dict(zip(feeds, [images.astype(np.float64), *batch[1:]], strict=True)),
        widened(variables),
    )
    for was, now in zip(narrow, wide, strict=True):
        assert now.dtype == np.float64
        np.testing.assert_allclose(now, was, rtol=2e-3, atol=2e-5)
        assert np.any(now != was)
    wide_ops = {"Cast", "FusedBatchNormV3", "StatelessRandomUniformV2"}
    assert "FusedBatchNormV3" in types_left(wide_graph)
    assert types_left(wide_graph) <= wide_ops


def plain_step(dtype):
    """A step whose constants are exact in float32, so that building it in float64 gives the same function."""
    rng = np.random.default_rng(1)

    def variable(*shape):
        return tf.Variable(rng.normal(size=shape).astype(np.float32).astype(dtype.as_numpy_dtype))

    kernel, table, recurrent, dense = variable(3, 3, 2, 4), variable(9, 4), variable(4, 4), variable(4, 3)
    variables = [kernel, table, recurrent, dense]

    @tf.function
    def activation(x):
        return tf.cond(tf.reduce_sum(x) > 0.5, lambda: tf.nn.softplus(x), lambda: tf.tanh(x) * 0.25)

    def step(images, ids):
        with tf.GradientTape() as tape:
            x = tf.reduce_mean(tf.nn.conv2d(images, kernel, 1, "SAME"), [1, 2])
            words = tf.gather(table, ids)
            outs = tf.TensorArray(dtype, 5)
            _, state, outs = tf.while_loop(
                lambda i, *_: i < 5,
                lambda i, s, o: (i + 1, activation(s @ recurrent + words[:, i]), o.write(i, s)),
                (0, x, outs),
            )
            logits = (state + tf.reduce_mean(outs.stack(), 0)) @ dense
            loss = tf.reduce_mean(tf.reduce_logsumexp(logits, -1)) + tf.cast(tf.size(ids), dtype) * 0.125
        gradients = tape.gradient(loss, variables)
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    return captured(step, tf.TensorSpec([None, 6, 6, 2], dtype), tf.TensorSpec([None, 5], tf.int32))


def test_the_rewrite_is_the_step_built_in_float64():
    rng = np.random.default_rng(2)
    batch = [rng.normal(size=(4, 6, 6, 2)), rng.integers(0, 9, (4, 5))]
    graph, fetches, feeds, variables = plain_step(tf.float32)
    rewritten = to_float64(graph)
    assert not types_left(rewritten)
    ours = run(rewritten, fetches, dict(zip(feeds, batch, strict=True)), widened(variables))
    graph, fetches, feeds, variables = plain_step(tf.float64)
    theirs = run(graph, fetches, dict(zip(feeds, batch, strict=True)), variables)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    assert to_float64(graph) is graph


@pytest.fixture
def v1_control_flow():
    tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()


def v1_loop(dtype):
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(dtype, [3], name="x")

        def body(i, y, array):
            y = tf.cond(tf.reduce_sum(y) > 2.0, lambda: y * x, lambda: tf.sin(y) + 0.5)
            # Fixed to float inside the loop: the casts must be in its frame.
            boxed = tf.image.crop_and_resize(tf.reshape(y, [1, 3, 1, 1]), [[0, 0, 1, 1]], [0], [3, 1])
            return i + 1, y + tf.cast(tf.reshape(boxed, [3]), dtype), array.write(i, y)

        _, out, array = tf.while_loop(lambda i, *_: i < 4, body, (0, x, tf.TensorArray(dtype, 4)))
        out += tf.reduce_sum(array.stack(), 0)
        gradient = tf.gradients(out, x)[0]
    return graph_from_graphdef(built.as_graph_def()), [out.name, gradient.name]


@pytest.mark.usefixtures("v1_control_flow")
def test_loops_of_the_first_kind_with_an_op_that_stays_narrow():
    value = np.array([0.25, 0.5, 1.0])
    graph, fetches = v1_loop(tf.float32)
    wide = to_float64(graph)
    assert {"StackV2", "TensorArrayV3", "TensorArrayGradV3"} <= {node.op for node in wide.nodes}
    narrow_values = run(graph, fetches, {"x:0": value})
    wide_values = run(wide, fetches, {"x:0": value})
    for was, now in zip(narrow_values, wide_values, strict=True):
        assert now.dtype == np.float64
        np.testing.assert_allclose(now, was, rtol=1e-4)


def one_op(build):
    with tf.Graph().as_default() as built:
        fetches = tf.nest.flatten(build())
    return graph_from_graphdef(built.as_graph_def()), [t.name for t in fetches]


def test_random_draws_stay_what_they_were():
    graph, fetches = one_op(lambda: tf.random.stateless_normal([5], [3, 4]))
    (was,), (now,) = run(graph, fetches, {}), run(to_float64(graph), fetches, {})
    assert now.dtype == np.float64
    np.testing.assert_array_equal(now, was.astype(np.float64))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.complex64])
@pytest.mark.parametrize("values", [[1.5, -2.25, 3.0], [0.5] * 300, 7.0])
def test_constants_keep_their_values(dtype, values):
    with tf.Graph().as_default() as built:
        constant = tf.constant(values, dtype)
    # TensorFlow writes few values and repeated ones in fields of their own, others as content.
    for content in (tf.make_tensor_proto(np.asarray(values), dtype), constant.op.get_attr("value")):
        graph_def = built.as_graph_def()
        graph_def.node[0].attr["value"].tensor.CopyFrom(content)
        (now,) = run(to_float64(graph_from_graphdef(graph_def)), [constant.name], {})
        assert now.dtype == (np.complex128 if dtype.is_complex else np.float64)
        np.testing.assert_array_equal(now, np.asarray(values))


def test_bits_are_taken_of_the_old_type():
    graph, fetches = one_op(lambda: tf.bitcast(tf.constant([1.0, 2.0]), tf.int32))
    np.testing.assert_array_equal(run(to_float64(graph), fetches, {})[0], [0x3F800000, 0x40000000])


def test_half_becomes_double_and_what_stays_narrow_becomes_float():
    def build():
        x = tf.constant(np.linspace(0, 1, 24).reshape(2, 2, 2, 3), tf.float16)
        ones = tf.ones([3], tf.float32)
        return tf.raw_ops.FusedBatchNormV3(
            x=x, scale=ones, offset=ones, mean=[], variance=[], is_training=True
        )

    graph, fetches = one_op(build)
    wide = to_float64(graph)
    (narrow,) = (node for node in wide.nodes if node.op == "FusedBatchNormV3")
    assert narrow.attrs["T"] == DType("float")
    values = run(wide, fetches, {})
    assert {value.dtype for value in values} == {np.dtype(np.float64)}
    np.testing.assert_allclose(values[0].mean((0, 1, 2)), 1.0, atol=1e-6)


def test_ops_without_a_kernel_for_double_stay_narrow():
    graph, fetches = one_op(lambda: tf.nn.avg_pool3d(tf.ones([1, 4, 4, 4, 1]), 2, 2, "VALID") * 0.1)
    (value,) = run(to_float64(graph), fetches, {})
    assert value.dtype == np.float64
    np.testing.assert_array_equal(value, np.float64(np.float32(0.1)))


def test_full_types_and_handle_shapes_follow():
    with tf.Graph().as_default() as built:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="v")
        reader = tf.function(lambda h: tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) * 2.0)
        out = reader(handle)
        optional = tf.raw_ops.OptionalGetValue(
            optional=tf.raw_ops.OptionalFromValue(components=[out]),
            output_types=[tf.float32],
            output_shapes=[[2]],
        )[0]
    graph_def = built.as_graph_def()
    values = run(
        to_float64(graph_from_graphdef(graph_def)),
        [optional.name],
        {},
        {handle.op.name: np.array([1.0, 2.0])},
    )
    np.testing.assert_array_equal(values[0], [2.0, 4.0])


def test_functions_with_ops_that_stay_narrow():
    @tf.function
    def called(x):
        draws = tf.random.stateless_uniform([3], [1, 2])
        moments = tf.compat.v1.nn.fused_batch_norm(tf.reshape(x, [1, 3, 1, 1]), [2.0], [0.5])
        return draws, moments[0], moments[1]

    graph, fetches = one_op(lambda: called(tf.constant([1.0, 2.0, 4.0])))
    for was, now in zip(run(graph, fetches, {}), run(to_float64(graph), fetches, {}), strict=True):
        assert now.dtype == np.float64
        np.testing.assert_allclose(now, was, rtol=1e-6)


def test_an_unknown_op_is_named():
    with pytest.raises(Float64Error, match="node 'n': op 'Mystery' is unknown"):
        to_float64(Graph(nodes=(Node(name="n", op="Mystery"),)))
    assert issubclass(Float64Error, StrategyError)
