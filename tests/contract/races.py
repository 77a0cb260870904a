"""Steps of several workers whose reads and assignments are held up at random, so that missing waits show."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from cases import Case
from layer_models import perceptron
from model import Model, mean_cross_entropy, on_labelled, variable

from harness.verification.worker.in_process import InProcessCluster
from strategies.plan.schema import Plan
from strategies.program import Program

K = keras.optimizers
N_STEPS = 4  # two updates of what adds up gradients of two steps
LONGEST_S = 0.01
_ACCESSES = (
    "ReadVariableOp",
    "ResourceGather",
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
)


def accumulated() -> Model:
    """Weights decay in the branch that applies what two steps have added up."""
    return perceptron(K.SGD(0.1, weight_decay=0.1, gradient_accumulation_steps=2), n_steps=N_STEPS)


def shrunk() -> Model:
    """Branches of the step's own shrink weights and a table before they move them."""
    weights, table = variable("weights", 3, 4), variable("table", 6, 4)
    calls = tf.Variable(0, trainable=False, name="calls", dtype=tf.int64)

    @tf.function
    def train(batch: Any) -> tf.Tensor:
        rows, labels = batch
        with tf.GradientTape() as tape:
            looked_up = tf.gather(table, tf.cast(rows[:, 0] > 0, tf.int32))
            loss = mean_cross_entropy(labels, rows @ weights + looked_up)
        of_weights, of_table = tape.gradient(loss, [weights, table])
        calls.assign_add(1)

        def moved(variable: tf.Variable, *, shrink: bool) -> tf.Tensor:
            if shrink:
                variable.assign(0.5 * variable)
            if variable is table:
                table.scatter_sub(tf.IndexedSlices(0.1 * of_table.values, of_table.indices))
            else:
                weights.assign_sub(0.1 * of_weights)
            return tf.constant(0)

        for shared in (weights, table):
            tf.cond(calls % 2 == 0, partial(moved, shared, shrink=True), partial(moved, shared, shrink=False))
        return loss

    return on_labelled(train, n_steps=N_STEPS)


def averaged() -> Model:
    """Averages of the weights replace them every other step."""
    optimizer = K.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2)
    return perceptron(optimizer, n_steps=N_STEPS)


def scaled() -> Model:
    """The whole update is in the branch of a loss scale."""
    optimizer = K.LossScaleOptimizer(K.SGD(0.1, weight_decay=0.1), initial_scale=64.0)
    return perceptron(optimizer, n_steps=N_STEPS)


MODELS: Mapping[str, Callable[[], Model]] = {
    "accumulated": accumulated,
    "shrunk": shrunk,
    "averaged": averaged,
    "scaled": scaled,
}
RACED = ("accumulated", "shrunk")
"""Those with an assignment in a branch that needs no gradient."""
SERVERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ps": ("ps", {}),
    "ps-load-balancing": ("ps-load-balancing", {}),
    "partitioned-ps": ("partitioned-ps", {}),
    "uneven-partitioned-ps": ("uneven-partitioned-ps", {}),
    "sharded-ps": ("sharded-ps", {"min_bytes": 1}),
    "robust-ps": ("robust-ps", {"rule": "mean"}),
    "robust-ps-of-two-servers": ("robust-ps", {"rule": "mean", "servers": 2}),
    "parallax": ("parallax", {}),
}


class Pauses:
    """Pauses of random length, of which about every third takes any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self) -> None:
        with self._lock:
            chance, share = self._random.random(2)
        if chance < 1 / 3:
            time.sleep(share * LONGEST_S)


def n_wrong(case: Case, plan: Plan, programs: Sequence[Program], n_tries: int) -> int:
    """Number of tries whose values differ from the reference; each try delays other accesses."""
    pauses = Pauses()
    # TensorFlow forgets a call with the graph that it was made in.
    graph = tf.Graph()
    with graph.as_default():
        token = tf.numpy_function(pauses, [], []).get_attr("token")
    wrong = 0
    with InProcessCluster([_held_up(program, token) for program in programs], case.initial) as cluster:
        for seed in range(n_tries):
            pauses.seed(seed)
            wrong += not case.judge(cluster, plan).equivalent
            cluster.begin(case.initial)
    return wrong


def _held_up(program: Program, token: bytes) -> Program:
    """The program with a pause before each access to a variable, in functions as well."""
    graph_def = tf.compat.v1.GraphDef.FromString(program.graph_def)
    by_itself = {name for v in program.variables for name in (v.load, v.read.partition(":")[0])}
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        names = {node.name for node in nodes}
        for node in [n for n in nodes if n.op.startswith(_ACCESSES) and n.name not in by_itself]:
            pause = nodes.add(name=f"{node.name}/pause", op="PyFunc", device=node.device)
            pause.attr["token"].s = token
            pause.attr["Tin"].list.SetInParent()
            pause.attr["Tout"].list.SetInParent()
            # It begins when the access could, in the frame of its loop.
            needed = (ref.lstrip("^").partition(":")[0] for ref in node.input)
            pause.input.extend(f"^{name}" for name in dict.fromkeys(needed) if name in names)
            node.input.append(f"^{pause.name}")
    return replace(program, graph_def=graph_def.SerializeToString())
