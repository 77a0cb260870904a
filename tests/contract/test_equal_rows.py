"""Rows of equal ids: each strategy ends where a plain Keras loop ends, unless it is asked to merge them."""

import itertools

import keras
import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]
tf = pytest.importorskip("tensorflow")

from cases import Case, case_of
from model import Model

from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.capture.capture import capture
from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary, Contribution
from strategies.passes.parameter_server.accumulator import Accumulator
from strategies.tf_bridge.graphdef import graphdef_from_graph
from workloads import TrainStep

N_STEPS, BATCH, N_IDS, N_CLASSES = 3, 7, 11, 3
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
    "sgd-clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "nesterov": lambda: keras.optimizers.SGD(0.5, momentum=0.9, nesterov=True),
}
LINEAR = ("sgd", "nesterov")
STRATEGIES = {
    "single": {},
    "all-reduce": {},
    "all-reduce by ring": {"transport": "ring"},
    "ps": {},
    "partitioned-ps": {},
    "sharded-ps": {"min_bytes": 1},
    "sharded-update": {"min_bytes": 1},
    "fully-sharded": {"min_bytes": 1},
    "parallax": {},
    "hierarchical-all-reduce": {},
}


def embedding(optimizer: str) -> Model:
    """Mean cross-entropy over words of a table of which each example looks up some more than once."""
    keras.utils.set_random_seed(3)
    table = keras.layers.Embedding(N_IDS + 1, 2, dtype="float64")
    table.build((None, 4))
    head = keras.layers.Dense(N_CLASSES, dtype="float64")
    head.build((None, 2))
    variables = [*table.trainable_variables, *head.trainable_variables]
    instance = OPTIMIZERS[optimizer]()
    instance.build(variables)

    def loss(batch):
        scores = head(tf.reduce_mean(table(batch[0]), axis=1))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=scores))

    random = np.random.default_rng(5)
    batches = [
        [
            random.integers(0, N_IDS // 2, (BATCH, 4)).astype(np.int32),
            random.integers(0, N_CLASSES, BATCH).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]
    spec = (tf.TensorSpec((4,), tf.int32), tf.TensorSpec((), tf.int32))
    return Model(
        step=TrainStep(loss=loss, variables=variables, optimizer=instance), spec=spec, batches=batches
    )


def trained_by_keras(model: Model) -> dict[str, np.ndarray]:
    """Variables after a loop that any user of Keras would write; the model is as before afterwards."""
    step = model.step
    variables = [*step.variables, *step.optimizer.variables]
    before = [v.numpy() for v in variables]
    for batch in model.batches:
        with tf.GradientTape() as tape:
            loss = step.loss([tf.constant(part) for part in batch])
        gradients = tape.gradient(loss, [v.value for v in step.variables])
        step.optimizer.apply(gradients, step.variables)
    after = {v.path: v.numpy() for v in variables}
    for v, value in zip(variables, before, strict=True):
        v.assign(value)
    return after


@pytest.fixture(scope="module", params=OPTIMIZERS)
def trained(request, tmp_path_factory) -> tuple[str, Case, dict[str, np.ndarray]]:
    keras.backend.clear_session()
    model = embedding(request.param)
    wanted = trained_by_keras(model)
    folder = tmp_path_factory.mktemp("equal-rows") / request.param
    return request.param, case_of(capture(model.step, model.spec), model.batches, folder), wanted


def test_every_strategy_ends_where_a_plain_loop_ends(trained):
    """With two replicas of 4 and 3 examples; the other shape has some that share a worker."""
    optimizer, case, wanted = trained
    shapes = ((1, 1), (2, 1)) if optimizer in ("adagrad", "nesterov") else ((1, 1),)
    for (name, params), replicas_per_task in itertools.product(STRATEGIES.items(), shapes):
        shape = (1,) if name == "single" else replicas_per_task
        plan = case.plan(name.removesuffix(" by ring"), shape, **params)
        text = "kept" if optimizer not in LINEAR or name == "single" else "merged (linear)"
        assert plan.sparse_duplicates == text, name
        with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
            cluster.steps(case.batches)
            ended = cluster.read()
        for (variable, rank), value in ended.items():
            if rank is None or rank == 0:
                far = np.max(np.abs(value - wanted[variable]))
                assert far <= 1e-9 * np.max(np.abs(wanted[variable])), (name, variable)


def test_merging_is_another_step_unless_the_update_is_linear(trained):
    optimizer, case, wanted = trained
    plan = case.plan("ps", (2, 1), merge_rows=True)
    assert plan.sparse_duplicates == "merged"
    assert any(note.startswith("merge_rows:") for note in plan.notes) == (optimizer not in LINEAR)
    assert case.check(plan).equivalent
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        cluster.steps(case.batches)
        table = cluster.read()["embedding/embeddings", None]
    apart = np.max(np.abs(table - wanted["embedding/embeddings"]))
    assert bool(apart <= 1e-12) == (optimizer in LINEAR)


def test_contributions_that_come_in_turn_stay_apart():
    """Two of one task and one of another, with ids that they share, before the server takes any."""
    float32, ids_type = DType("float"), DType("int32")
    boundary = Boundary(
        variable="table",
        role="gradient",
        rule="mean",
        dtype=float32,
        shape=Shape((5, 1)),
        values="rows",
        indices="ids",
        index_dtype=ids_type,
    )
    accumulator = Accumulator.of(boundary, "", required=1)
    rows = Node(name="rows", op="Placeholder", attrs={"dtype": float32, "shape": Shape((-1, 1))})
    ids = Node(name="ids", op="Placeholder", attrs={"dtype": ids_type, "shape": Shape((-1,))})
    step = const("step", "int64", 0)
    contribution = Contribution(rank=0, values="rows", indices="ids", weight=1.0)
    ready = accumulator.prepare(contribution, "")
    before, push = accumulator.apply_after_others(ready, step.name, [])
    take, sums = accumulator.take()
    nodes = (rows, ids, step, accumulator.handle, *ready.nodes, *before, push, *take)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graphdef_from_graph(Graph(nodes=nodes, functions={})), name="")
        with tf.compat.v1.Session() as session:
            for k in range(3):
                session.run(push.name, {"rows:0": [[k], [k + 0.5]], "ids:0": [4, 4]})
            refs = (sums.values, sums.indices)
            values, counts = session.run([ref if ":" in ref else f"{ref}:0" for ref in refs])
    assert values.ravel().tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert counts.tolist() == [4] * 6
