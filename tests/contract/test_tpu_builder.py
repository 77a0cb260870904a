"""The replicated computation that the pass writes is the one that TensorFlow's own builder writes.

Both are compared by structure: every node by its op, attributes, device, data and control inputs, down to
what replicas bring. What may differ is listed in `tpu_builder.py` and in docs/decisions/0065.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras
from model import values
from task_plans import task_plan
from tpu_builder import BODY, Computation, Replicated, of_ours, of_tensorflow

from strategies.capture.capture import capture
from strategies.ir.graph_rules import verify
from strategies.passes.tpu.replicate import ReplicateComputation
from strategies.topology import Topology
from workloads import TrainStep

v1 = tf.compat.v1
K = keras.optimizers
SPECS = (tf.TensorSpec((4,)), tf.TensorSpec((2,)))
OF_TENSORFLOW = {
    "descent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
}
OF_KERAS = {
    "keras-momentum": lambda: K.SGD(0.1, momentum=0.9),
    "keras-adam, clipped": lambda: K.Adam(0.1, global_clipnorm=0.5),
}
REPLICAS = {"2": (2,), "2+2": (2, 2), "4": (4,)}


@dataclass
class Written:
    """A step of a layer, as a person writes it.

    Attributes:
        reduced: transformation of gradients before the optimizer uses them.
    """

    make: Callable
    reduction: str
    reduced: Callable = list

    def __post_init__(self) -> None:
        self.optimizer = self.make()
        is_keras = isinstance(self.optimizer, K.Optimizer)
        make = keras.Variable if is_keras else tf.Variable
        self.variables = [make(values(4, 2), name="w"), make(values(2), name="b")]
        if is_keras:
            self.optimizer.build(self.variables)

    def loss(self, batch):
        x, y = batch
        w, b = self.variables
        errors = tf.math.squared_difference(x @ w + b, y)
        return tf.reduce_sum(errors) if self.reduction == "sum" else tf.reduce_mean(errors)

    def step(self, *batch):
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        gradients = self.reduced(tape.gradient(loss, self.variables))
        if isinstance(self.optimizer, K.Optimizer):
            self.optimizer.apply(gradients, self.variables)
        else:
            self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def captured(self):
        if isinstance(self.optimizer, K.Optimizer):
            return TrainStep(
                loss=self.loss,
                variables=self.variables,
                optimizer=self.optimizer,
                reduction=self.reduction,
            )
        return tf.function(lambda batch: self.step(*batch))


def ours(make, reduction, replicas) -> Computation:
    keras.backend.clear_session()
    topology = Topology(replicas_per_task=replicas, batch_size=8)
    step = capture(Written(make, reduction).captured(), SPECS).step
    replicated = ReplicateComputation(plan=task_plan(replicas_per_task=replicas)).apply(step, topology)
    verify(replicated.graph)
    return of_ours(replicated, [v.name for v in step.variables])


def theirs(make, reduction, n_replicas) -> Computation:
    """Means as TPUStrategy makes them; sums by CrossShardOptimizer, where it takes the optimizer.

    The mean of CrossShardOptimizer itself divides the loss, before gradients are taken of it.
    """

    def scaled(gradients):
        return (
            [tf.math.scalar_mul(1 / n_replicas, g) for g in gradients] if reduction == "mean" else gradients
        )

    def crossing(gradients):
        return [v1.tpu.cross_replica_sum(g) for g in scaled(gradients)]

    def optimizer():
        return v1.tpu.CrossShardOptimizer(make(), reduction=v1.losses.Reduction.SUM)

    keras.backend.clear_session()
    replicated = Replicated(n_replicas)
    with tf.variable_creator_scope(replicated.make):
        if make in OF_KERAS.values():
            written = Written(make, reduction, crossing)
        else:
            written = Written(optimizer, reduction, scaled)
    specs = [tf.TensorSpec((None, *spec.shape)) for spec in SPECS]
    return of_tensorflow(written.step, specs, replicated, n_replicas)


def unmatched(one: Computation, other: Computation) -> list[str]:
    """Nodes that the other does not have."""
    forms = one.forms()
    missing = Counter(forms.values()) - Counter(other.forms().values())
    return [f"{node.op} {node.name}" for node in one.reached if missing[forms.get(node.name)]]


def results(computation: Computation) -> list:
    forms = computation.forms()
    return [forms[name] for name in computation.results]


@pytest.mark.parametrize("replicas", REPLICAS.values(), ids=REPLICAS)
@pytest.mark.parametrize(
    ("optimizer", "reduction"),
    [*((name, "mean") for name in (*OF_TENSORFLOW, *OF_KERAS)), ("keras-momentum", "sum")],
)
def test_ours_is_what_tensorflow_builds(optimizer, reduction, replicas):
    make = {**OF_TENSORFLOW, **OF_KERAS}[optimizer]
    mine = ours(make, reduction, replicas)
    yours = theirs(make, reduction, sum(replicas))
    assert unmatched(mine, yours) == []
    assert unmatched(yours, mine) == []
    assert results(mine) == results(yours)
    assert mine.unused == ()
    # What TensorFlow's variables read of themselves after each assignment, groups of that, and what tracing
    # leaves behind; capture prunes.
    assert {node.op for node in yours.unused} <= {"ReadVariableOp", "Identity", "Shape", "NoOp"}


@pytest.fixture(scope="module")
def both():
    return ours(OF_TENSORFLOW["momentum"], "mean", (2,)), theirs(OF_TENSORFLOW["momentum"], "mean", 2)


def first(op, **changes):
    """Changes the first node of an op, of those that cores run if it is a constant."""

    def changed(nodes):
        place = next(
            i for i, node in enumerate(nodes) if node.op == op and (op != "Const" or BODY in node.attrs)
        )
        node = nodes[place]
        attrs = {**node.attrs, **changes.get("attrs", {})}
        inputs = changes.get("inputs", list)(node.inputs)
        nodes[place] = replace(
            node, attrs=attrs, inputs=tuple(inputs), device=changes.get("device", node.device)
        )

    return changed


def without_waits(nodes):
    return [node for node in nodes if node[0] != "^"]


def not_summed(refs):
    return [*refs[:3], "gradient_tape/matmul/MatMul", *refs[4:]]


MISTAKES = {
    "metadata of other replicas": first("TPUReplicateMetadata", attrs={"num_replicas": 3}),
    "copies that may differ": first("TPUReplicatedInput", attrs={"is_mirrored_variable": False}),
    "copies in another order": first("TPUReplicatedInput", inputs=lambda refs: [refs[1], refs[0], *refs[2:]]),
    "a sum of two groups": first("CrossReplicaSum", inputs=lambda refs: [refs[0], "Momentum/momentum"]),
    "a gradient that is not summed": first("ResourceApplyMomentum", inputs=not_summed),
    "a constant outside": first("Const", inputs=without_waits),
    "an update that may come first": first("ResourceApplyMomentum", inputs=without_waits),
    "an update that nobody waits for": first(
        "ResourceApplyMomentum", attrs={"_has_manual_control_dependencies": False}
    ),
    "a result of no core": first("TPUReplicatedOutput", attrs={"num_replicas": 1}),
    "a compilation of its own": first("TPUCompilationResult", inputs=without_waits),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_computation_that_tensorflow_would_not_write_is_noticed(both, mistake):
    mine, yours = both
    nodes = list(mine.graph.nodes)
    MISTAKES[mistake](nodes)
    wrong = replace(mine, graph=mine.graph.with_nodes(nodes))
    assert unmatched(wrong, yours)
