"""GraphDef → graph → GraphDef is the identity, on made-up protos and on every kind of control flow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow.core.framework import attr_value_pb2, function_pb2, types_pb2

from strategies.errors import GraphError
from strategies.ir.graph import (
    AttrPlaceholder,
    DType,
    FunctionRef,
    Graph,
    Node,
    OpaqueAttr,
    Shape,
    TensorValue,
)
from strategies.tf_bridge.graphdef import (
    graph_from_graphdef,
    graphdef_from_graph,
    serialize_graph,
)

AttrValue = attr_value_pb2.AttrValue


def canonical(message):
    # Protos with NaN differ from themselves, so the comparison is on bytes.
    return message.SerializeToString(deterministic=True)


def assert_identity(graph_def):
    graph = graph_from_graphdef(graph_def)
    back = graphdef_from_graph(graph)
    assert canonical(back) == canonical(graph_def)
    assert canonical(tf.compat.v1.GraphDef.FromString(serialize_graph(graph))) == canonical(graph_def)
    return graph


names = st.text(min_size=1, max_size=8)
int64s = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32)
dtypes = st.sampled_from(types_pb2.DataType.values())


@st.composite
def shapes(draw):
    shape = tf.TensorShape(None).as_proto()
    shape.unknown_rank = draw(st.booleans())
    for size in draw(st.lists(st.integers(-1, 2**40), max_size=3)):
        shape.dim.add(size=size, name=draw(st.sampled_from(["", "", "rows"])))
    return shape


@st.composite
def tensors(draw):
    tensor = tf.make_tensor_proto(draw(st.lists(floats, max_size=300)), tf.float32)
    tensor.version_number = draw(st.integers(0, 3))
    return tensor


def functions(values):
    @st.composite
    def build(draw):
        func = attr_value_pb2.NameAttrList(name=draw(st.text(max_size=5)))
        for name, value in draw(st.dictionaries(names, values, max_size=2)).items():
            func.attr[name].CopyFrom(value)
        return func

    return build()


def attr_values():
    def build(**fields):
        return st.builds(AttrValue, **fields)

    leaves = st.one_of(
        st.just(AttrValue()),
        build(s=st.binary(max_size=200)),
        build(i=int64s),
        build(f=floats),
        build(b=st.booleans()),
        build(type=dtypes),
        build(shape=shapes()),
        build(tensor=tensors()),
        build(placeholder=st.text(max_size=5)),
    )

    def lists(values):
        def build(**fields):
            return st.builds(AttrValue.ListValue, **fields)

        return st.one_of(
            build(),
            build(s=st.lists(st.binary(max_size=5))),
            build(i=st.lists(int64s)),
            build(f=st.lists(floats)),
            build(b=st.lists(st.booleans())),
            build(type=st.lists(dtypes)),
            build(shape=st.lists(shapes(), max_size=3)),
            build(tensor=st.lists(tensors(), max_size=2)),
            build(func=st.lists(functions(values), max_size=2)),
            build(i=st.lists(int64s), s=st.lists(st.binary(max_size=5))),
        ).map(lambda value: AttrValue(list=value))

    return st.recursive(
        leaves,
        lambda values: functions(values).map(lambda func: AttrValue(func=func)) | lists(values),
        max_leaves=4,
    )


@st.composite
def node_defs(draw):
    node = tf.compat.v1.NodeDef(
        name=draw(names),
        op=draw(names),
        input=draw(st.lists(names, max_size=3)),
        device=draw(st.text(max_size=150)),
    )
    for name, value in draw(st.dictionaries(names, attr_values(), max_size=3)).items():
        node.attr[name].CopyFrom(value)
    if draw(st.booleans()):
        node.experimental_debug_info.original_node_names.append(draw(names))
        node.experimental_debug_info.original_func_names.append(draw(names))
    if draw(st.booleans()):
        node.experimental_type.type_id = draw(st.sampled_from([0, 1, 2, 100]))
        node.experimental_type.s = draw(names)
    return node


@st.composite
def function_defs(draw, name):
    function = function_pb2.FunctionDef(
        node_def=draw(st.lists(node_defs(), max_size=2)),
        ret=draw(st.dictionaries(names, names, max_size=2)),
        control_ret=draw(st.dictionaries(names, names, max_size=2)),
        resource_arg_unique_id=draw(st.dictionaries(st.integers(0, 9), st.integers(0, 9), max_size=2)),
    )
    function.signature.name = name
    function.signature.is_stateful = draw(st.booleans())
    function.signature.description = draw(st.text(max_size=5))
    function.signature.control_output.extend(draw(st.lists(names, max_size=2)))
    for args in (function.signature.input_arg, function.signature.output_arg):
        for arg_name in draw(st.lists(names, max_size=3)):
            arg = args.add(name=arg_name, type=draw(dtypes), type_attr=draw(st.sampled_from(["", "T"])))
            arg.is_ref = draw(st.booleans())
            if draw(st.booleans()):
                arg.handle_data.add(dtype=types_pb2.DT_FLOAT, shape=draw(shapes()))
    for attr_name, value in draw(st.dictionaries(names, attr_values(), max_size=2)).items():
        function.attr[attr_name].CopyFrom(value)
    for index in draw(st.lists(st.integers(0, 9), max_size=2)):
        for attr_name, value in draw(st.dictionaries(names, attr_values(), max_size=2)).items():
            function.arg_attr[index].attr[attr_name].CopyFrom(value)
    if draw(st.booleans()):
        function.signature.attr.add(name="T", type="type").allowed_values.list.type.append(1)
        function.signature.deprecation.version = 3
    return function


@st.composite
def graph_defs(draw):
    graph_def = tf.compat.v1.GraphDef(
        node=draw(st.lists(node_defs(), max_size=3)), version=draw(st.integers(0, 9))
    )
    graph_def.versions.producer = draw(st.integers(0, 9))
    graph_def.versions.bad_consumers.extend(draw(st.lists(st.integers(0, 9), max_size=2)))
    if draw(st.booleans()):
        graph_def.library.SetInParent()
    for name in draw(st.lists(names, max_size=2, unique=True)):
        graph_def.library.function.add().CopyFrom(draw(function_defs(name)))
    if draw(st.booleans()):
        graph_def.library.gradient.add(function_name="f", gradient_func="g")
        graph_def.library.registered_gradients.add(gradient_func="g", registered_op_type="Op")
    if draw(st.booleans()):
        graph_def.debug_info.files.append("step.py")
    return graph_def


@given(graph_defs())
@settings(max_examples=100)
def test_any_graphdef_comes_back_unchanged(graph_def):
    assert_identity(graph_def)


@pytest.mark.parametrize(
    ("value", "attr"),
    [
        (AttrValue(s=b"x"), b"x"),
        (AttrValue(b=True), True),
        (AttrValue(i=1), 1),
        (AttrValue(f=1.0), 1.0),
        (AttrValue(type=types_pb2.DT_FLOAT_REF), DType("float_ref")),
        (AttrValue(list=AttrValue.ListValue()), ()),
        (AttrValue(list=AttrValue.ListValue(type=[1, 9])), (DType("float"), DType("int64"))),
        (AttrValue(placeholder="T"), AttrPlaceholder("T")),
        (AttrValue(shape=tf.TensorShape([None, 3]).as_proto()), Shape((-1, 3))),
        (AttrValue(shape=tf.TensorShape(None).as_proto()), Shape(None)),
        (AttrValue(func=attr_value_pb2.NameAttrList(name="f")), FunctionRef("f")),
        (AttrValue(), OpaqueAttr(b"")),
    ],
)
def test_plain_form_of_an_attribute(value, attr):
    node = tf.compat.v1.NodeDef(name="n", op="Op")
    node.attr["a"].CopyFrom(value)
    (read,) = graph_from_graphdef(tf.compat.v1.GraphDef(node=[node])).nodes
    assert read.attrs["a"] == attr
    assert type(read.attrs["a"]) is type(attr)


def test_constants_keep_their_bytes():
    tensor = tf.make_tensor_proto([1.5, 2.5])
    node = tf.compat.v1.NodeDef(name="n", op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    (read,) = graph_from_graphdef(tf.compat.v1.GraphDef(node=[node])).nodes
    assert read.attrs["value"] == TensorValue(tensor.SerializeToString())


def test_a_plain_string_is_no_attribute():
    with pytest.raises(GraphError, match="str is no kind of attribute"):
        serialize_graph(Graph(nodes=(Node(name="n", op="Op", attrs={"a": "text"}),)))


def test_an_unknown_type_is_named():
    with pytest.raises(GraphError, match="'floaty'"):
        serialize_graph(Graph(nodes=(Node(name="n", op="Op", attrs={"T": DType("floaty")}),)))


def test_one_name_for_two_functions_is_refused():
    graph_def = tf.compat.v1.GraphDef()
    for _ in range(2):
        graph_def.library.function.add().signature.name = "f"
    with pytest.raises(GraphError, match="'f' is in the library twice"):
        graph_from_graphdef(graph_def)


@pytest.fixture
def v1_control_flow():
    tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()


def test_v1_loops_nested_with_a_branch(v1_control_flow):
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3])

        def inner(i, y):
            return i + 1, tf.cond(tf.reduce_sum(y) > 3.0, lambda: y * 0.5, lambda: y + x)

        def outer(i, y):
            return i + 1, tf.while_loop(lambda j, _: j < 2, inner, (0, y))[1]

        _, out = tf.while_loop(lambda i, _: i < 3, outer, (0, x))
        tf.gradients(out, x)
    graph = assert_identity(built.as_graph_def())
    assert {"Enter", "Switch", "Merge", "NextIteration", "Exit"} <= {node.op for node in graph.nodes}


def test_v2_control_flow_functions_and_tensor_lists():
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [3, 3])
        v = tf.Variable(tf.zeros([3, 3]))

        @tf.function
        def called(a):
            return tf.switch_case(tf.cast(a[0, 0], tf.int32), [lambda: a + v, lambda: a * v])

        def body(i, y, array):
            y = tf.cond(tf.reduce_sum(y) > 1.0, lambda: called(y), lambda: y)
            return i + 1, y, array.write(i, y)

        array = tf.TensorArray(tf.float32, 3, element_shape=[3, 3])
        _, out, array = tf.while_loop(lambda i, *_: i < 3, body, (0, x, array))
        tf.gradients(tf.reduce_sum(array.stack()) + tf.reduce_sum(out), x)
    graph_def = built.as_graph_def(add_shapes=True)
    graph = assert_identity(graph_def)
    ops = {node.op for node in graph.nodes} | {n.op for f in graph.functions.values() for n in f.nodes}
    assert {"While", "If", "Case", "TensorListReserve"} <= ops
    assert ops & {"PartitionedCall", "StatefulPartitionedCall"}
