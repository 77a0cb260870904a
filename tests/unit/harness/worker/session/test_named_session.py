"""A session that knows names alone runs what one with the public import runs."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from harness.worker.session.named_session import NamedSession

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1


@pytest.fixture(scope="module")
def graph_def():
    """A placeholder, a variable, a function, a node of two outputs, and one that changes the variable."""

    @tf.function
    def squared(x):
        return x * x

    graph = tf.Graph()
    with graph.as_default():
        fed = v1.placeholder(tf.float32, [None], name="fed")
        variable = v1.get_variable("held", [2], initializer=v1.zeros_initializer(), use_resource=True)
        tf.identity(squared(fed) + variable, name="sum")
        tf.unstack(variable, num=2, name="apart")
        tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=tf.constant([1.0, 2.0]), name="added")
        v1.global_variables_initializer()
    return graph.as_graph_def()


@pytest.fixture
def named(graph_def):
    session = NamedSession(graph_def, "", v1.ConfigProto())
    session.run((), {}, ["init"])
    yield session
    session.close()


def test_it_runs_what_the_public_import_runs(named, graph_def) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    fed = np.array([3.0, 4.0], np.float32)
    with v1.Session(graph=graph) as public:
        public.run("init")
        expected = public.run(["sum:0", "apart:1"], {"fed:0": fed})
    for value, right in zip(named.run(["sum", "apart:1"], {"fed": fed}), expected, strict=True):
        np.testing.assert_array_equal(value, right)


def test_targets_run_without_being_fetched(named) -> None:
    assert named.run((), {}, ["added"]) == []
    assert [float(value) for value in named.run(["apart", "apart:1"], {})] == [1.0, 2.0]


def test_what_is_fed_or_asked_for_twice_is_fetched_too(named) -> None:
    fed = np.array([3.0, 4.0], np.float32)
    first, fed_value, second = named.run(["sum", "fed:0", "sum:0"], {"fed": fed})
    assert fed_value is fed
    np.testing.assert_array_equal(first, second)


def test_nothing_is_run_where_nothing_is_asked_for(named) -> None:
    fed = np.array([3.0, 4.0], np.float32)
    assert named.run([], {}) == []
    assert named.run(["fed"], {"fed": fed})[0] is fed


def test_feeds_of_another_order_reach_their_own_placeholders() -> None:
    graph = tf.Graph()
    with graph.as_default():
        a, b = (v1.placeholder(tf.float32, [], name=name) for name in "ab")
        tf.subtract(a, b, name="difference")
    session = NamedSession(graph.as_graph_def(), "", v1.ConfigProto())
    assert session.run(["difference"], {"a": np.float32(3), "b": np.float32(1)}) == [2.0]
    assert session.run(["difference"], {"b": np.float32(1), "a": np.float32(3)}) == [2.0]
    session.close()


def test_a_prepared_call_takes_what_is_fed_in_order(named) -> None:
    call = named.prepared(["fed"], ["sum"], ["added"])
    (first,) = call(np.array([1.0, 1.0], np.float32))
    assert first.shape == (2,)
    assert [float(value) for value in named.run(["apart", "apart:1"], {})] == [1.0, 2.0]


def test_a_graph_that_tensorflow_refuses_is_named(graph_def) -> None:
    broken = v1.GraphDef()
    broken.CopyFrom(graph_def)
    next(node for node in broken.node if node.name == "sum").input[0] = "nowhere"
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sum.*nowhere"):
        NamedSession(broken, "", v1.ConfigProto())


def test_what_is_not_in_the_graph_is_named(named) -> None:
    with pytest.raises(tf.errors.OpError, match="nowhere"):
        named.run(["nowhere"], {})
