"""A captured step computes what its author's own does as plain TensorFlow; one that does not is noticed."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras
from cases import case_of_model
from model import BATCH_SIZE, ROWS, Model, on_labelled, on_rows, variable
from models import BY_TENSORFLOW, COMPILED, FEW, MODELS, NORMALISED, NORMALISED_SUM
from task_plans import task_plan

from harness.verification.verification import CaptureVerdict
from harness.verification.worker.plain_step import PythonDraws
from harness.verification.worker.users_step import UsersStep, check_capture, is_traced_alike
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.capture import capture
from strategies.ir.train_graph import TrainGraph
from strategies.passes.update.merge_rows import MergeRows
from strategies.plan.schema import PlanNode
from strategies.topology import Topology
from workloads import TrainStep

ALONE = Topology(replicas_per_task=(1,), batch_size=BATCH_SIZE)
# Loops of the first TensorFlow, among a function's own nodes.
NO_PLAIN_STEP = {"first-loop-in-step", "first-loops-in-step"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "model" in metafunc.fixturenames:
        few = (*FEW, *COMPILED, *BY_TENSORFLOW, NORMALISED, NORMALISED_SUM)
        metafunc.parametrize("model", MODELS if metafunc.config.getoption("--all-cases") else few)


def test_a_captured_step_is_its_author_s_own(cases: Any, model: str) -> None:
    verdict = cases.model(model).capture_verdict()
    if model in NO_PLAIN_STEP:
        assert verdict.equal is None
        assert "frame" in verdict.explanation
        return
    assert verdict.equal is True, verdict.explanation
    assert verdict.steps == 2
    assert set(verdict.not_compared) <= {"loss"}


def verdict_on(
    model: Model,
    folder: Path,
    captured_as: Any = None,
    while_captured: AbstractContextManager[Any] | None = None,
    then: Callable[[TrainGraph], TrainGraph] = lambda step: step,
    build: Callable[[], Any] | None = None,
) -> CaptureVerdict:
    """The verdict on a capture of a step, or of another one on its variables, beside the model's own."""
    draws = PythonDraws.now()
    if while_captured is None:
        captured = capture(captured_as or model.step, model.spec)
    else:
        with while_captured:
            captured = capture(captured_as or model.step, model.spec)
    save(folder, captured.step, captured.initial)
    users = UsersStep(
        step=model.step,
        element_spec=model.spec,
        variables=captured.variables,
        returns_loss=captured.returns_loss,
        draws=draws,
        build=build or (lambda: model.step),
    )
    return check_capture(users, then(captured.step), InitialValues(folder), model.batches[:2])


def classifier(optimizer: Any, **settings: Any) -> Model:
    """Dense layers and an embedding whose ids repeat, trained by an optimizer."""
    table, head = keras.layers.Embedding(5, 3, name="table"), keras.layers.Dense(4, name="head")
    table.build()
    head.build((None, 3))
    variables = [*table.trainable_variables, *head.trainable_variables]
    optimizer.build(variables)

    def loss(batch: Any) -> Any:
        rows, labels = batch
        logits = head(rows + table(labels))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    return on_labelled(TrainStep(loss=loss, variables=variables, optimizer=optimizer, **settings))


@dataclass
class Changed:
    """A setting of an object that another value takes the place of while a step is captured."""

    owner: Any
    name: str
    value: Any

    def __enter__(self) -> None:
        self.before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.before)


K = keras.optimizers
MUTATIONS: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "a weight decay is dropped": (partial(K.AdamW, 0.01, weight_decay=0.01), "weight_decay", None),
    "an average is dropped": (partial(K.SGD, 0.1, use_ema=True), "use_ema", False),
    "another clip": (partial(K.SGD, 0.1, global_clipnorm=0.1), "global_clipnorm", 0.11),
    "a clip is dropped": (partial(K.Adam, 0.01, clipnorm=0.05), "clipnorm", None),
    "another rate of a slot": (partial(K.Adam, 0.01), "beta_2", 0.99),
    "a momentum without its correction": (
        partial(K.SGD, 0.1, momentum=0.9, nesterov=True),
        "nesterov",
        False,
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_an_optimizer_s_setting_that_capture_changes_is_noticed(mutation: str, tmp_path: Path) -> None:
    make, name, value = MUTATIONS[mutation]
    sound = classifier(make())
    assert verdict_on(sound, tmp_path / "sound").equal is True
    mutant = classifier(make())
    verdict = verdict_on(
        mutant, tmp_path / "mutant", while_captured=Changed(mutant.step.optimizer, name, value)
    )
    assert verdict.equal is False
    assert verdict.max_error > 10 * verdict.tolerance
    assert "bug in stratbench" in verdict.explanation
    assert verdict.worst in verdict.explanation


def counted() -> Callable[[], float]:
    """Number of calls until now."""
    numbers = itertools.count(1)
    return lambda: float(next(numbers))


def first_time() -> Callable[[], float]:
    """Number that is another one at the first call than at all later ones."""
    numbers = itertools.chain([1.0], itertools.repeat(3.0))
    return lambda: next(numbers)


def drawn() -> Callable[[], Any]:
    """Numbers from a generator of the model's own."""
    generator = np.random.default_rng(0)
    return lambda: generator.normal(size=4).astype(np.float32)


def of_a_list() -> Callable[[], Any]:
    """A constant made outside of the trace, another one each time."""
    numbers = itertools.count(1)

    def constant() -> Any:
        with tf.init_scope():
            return tf.constant(float(next(numbers)))

    return constant


@pytest.mark.parametrize("factor", [counted, first_time, drawn, of_a_list])
def test_a_step_that_each_trace_makes_another_one_is_not_called_wrong(
    factor: Callable[[], Callable[[], Any]], tmp_path: Path
) -> None:
    w = variable("w", 3, 4)

    def build() -> TrainStep:
        of_trace = factor()

        def loss(rows: Any) -> Any:
            return tf.reduce_mean(tf.square(of_trace() * (rows @ w) - 1.0))

        return TrainStep(loss=loss, variables=[w], optimizer=K.SGD(0.1))

    verdict = verdict_on(on_rows(build(), [w]), tmp_path / "step", build=build)
    assert verdict.equal is None
    assert "each trace of its Python code makes another step" in verdict.explanation


def test_a_step_that_chooses_another_variable_at_each_trace_is_not_called_wrong(tmp_path: Path) -> None:
    variables = [variable("a", 3, 4), variable("b", 3, 4)]

    def build() -> Any:
        turns = itertools.cycle(variables)

        @tf.function
        def train(rows: Any) -> Any:
            w = next(turns)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(rows @ w - 1.0))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return train

    verdict = verdict_on(on_rows(build(), variables), tmp_path / "step", build=build)
    assert verdict.equal is None


def fresh_step(optimizer: Any) -> Any:
    """A step whose optimizer is not built."""
    w = variable("w", 3, 4)
    mask = tf.constant([np.nan, 1.0, 2.0, 3.0])

    def loss(rows: Any) -> Any:
        return tf.reduce_mean(tf.square(rows @ w - tf.where(mask > 0.0, mask, 0.0)))

    return TrainStep(loss=loss, variables=[w], optimizer=optimizer)


def fresh_model(optimizer: Any) -> Any:
    """A compiled model whose optimizer is not built."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, use_bias=False)])
    model.compile(optimizer, loss=lambda labels, outputs: tf.square(outputs - 1.0))
    return model


@pytest.mark.parametrize(
    "optimizer", [partial(K.SGD, 0.1), partial(K.SGD, 0.1, momentum=0.9), partial(K.Adam, 0.1)]
)
@pytest.mark.parametrize("make", [fresh_step, fresh_model])
def test_traces_of_a_step_that_is_the_same_each_time_are_alike(make: Any, optimizer: Any) -> None:
    step = make(optimizer())
    spec = tf.TensorSpec((3,), tf.float32)
    if make is fresh_model:
        spec = (spec, tf.TensorSpec((4,), tf.float32))
    users = UsersStep(
        step=step,
        element_spec=spec,
        variables={},
        returns_loss=True,
        draws=PythonDraws.now(),
        build=lambda: step,
    )
    assert is_traced_alike(users, None)


@pytest.mark.parametrize("optimizer", [K.Adam, K.Adagrad, K.RMSprop, K.Ftrl])
def test_merged_rows_are_noticed(optimizer: Any, tmp_path: Path) -> None:
    model = classifier(optimizer(0.05))
    assert verdict_on(model, tmp_path / "sound").equal is True
    rows = PlanNode(
        variable="table/embeddings",
        shape=(1,),
        dtype="float",
        bytes=4,
        sparse=True,
        synchronizer="all-reduce",
        sparse_duplicates="merged",
    )
    merging = MergeRows(plan=task_plan(rows))
    verdict = verdict_on(model, tmp_path / "merged", then=lambda step: merging.apply(step, ALONE))
    assert verdict.equal is False
    assert "table_embeddings" in verdict.worst or verdict.worst == "table/embeddings"


def test_the_clip_of_a_train_step_is_its_documented_one(tmp_path: Path) -> None:
    model = classifier(K.SGD(0.1), clip_global_norm=0.05)
    assert verdict_on(model, tmp_path / "sound").equal is True
    dropped = replace(model.step, clip_global_norm=None)
    assert verdict_on(model, tmp_path / "mutant", captured_as=dropped).equal is False


def test_scaled_losses_are_clipped_by_the_norm_of_what_is_not_scaled(tmp_path: Path) -> None:
    model = classifier(K.LossScaleOptimizer(K.SGD(0.1), initial_scale=8.0), clip_global_norm=0.05)
    assert verdict_on(model, tmp_path / "scaled").equal is True


def two_updates() -> tuple[Any, Any, Any]:
    """A step that decays a variable before its update, one that does so afterwards, and the variable."""
    w = variable("w", 3, 4)

    def of(*updates: Callable[[Any], object]) -> Any:
        @tf.function
        def train(rows: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(rows @ w - 1.0))
            gradient = tape.gradient(loss, w)
            for update in updates:
                update(gradient)
            return loss

        return train

    def decay(_: Any) -> object:
        return w.assign(0.9 * w)

    def descend(gradient: Any) -> object:
        return w.assign_sub(0.1 * gradient)

    return of(decay, descend), of(descend, decay), w


def test_two_updates_in_another_order_are_noticed(tmp_path: Path) -> None:
    first, second, w = two_updates()
    model = on_rows(first, [w])
    assert verdict_on(model, tmp_path / "sound").equal is True
    verdict = verdict_on(model, tmp_path / "mutant", captured_as=second)
    assert (verdict.equal, verdict.worst) == (False, "w")


def test_the_user_s_variables_are_as_before(tmp_path: Path) -> None:
    first, _, w = two_updates()
    before = w.numpy()
    verdict_on(on_rows(first, [w]), tmp_path / "step")
    np.testing.assert_array_equal(w.numpy(), before)


def noisy(draw: Callable[[Any], Any], *, n_updates: int = 2) -> Model:
    """Updates in a row, each by a loss with noise of its own."""
    w, other = variable("w", 3, 4), tf.Variable(1.0, name="kept")

    @tf.function
    def train(rows: Any) -> Any:
        for _ in range(n_updates):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square((rows + draw(rows)) @ w - 1.0))
            w.assign_sub(0.1 * tape.gradient(loss, w))
        other.assign(0.5 * other)
        return {"loss": loss}

    return on_rows(train)


def test_seeded_operations_draw_in_both_what_they_draw_in_one(tmp_path: Path) -> None:
    tf.random.set_seed(3)
    verdict = verdict_on(noisy(lambda rows: tf.random.normal(tf.shape(rows))), tmp_path / "step")
    assert verdict.equal is True, verdict.explanation
    assert verdict.max_error == 0.0


def test_operations_within_a_branch_draw_alike_too(tmp_path: Path) -> None:
    def draw(rows: Any) -> Any:
        return tf.cond(tf.reduce_sum(rows) > -99.0, lambda: tf.random.normal(tf.shape(rows)), lambda: rows)

    tf.random.set_seed(3)
    verdict = verdict_on(noisy(draw, n_updates=1), tmp_path / "step")
    assert verdict.equal is True, verdict.explanation


def test_draws_without_any_seed_are_named_and_the_rest_is_compared(tmp_path: Path) -> None:
    tf.random.set_seed(None)
    model = noisy(lambda rows: tf.raw_ops.RandomUniform(shape=tf.shape(rows), dtype=tf.float32))
    verdict = verdict_on(model, tmp_path / "step")
    assert verdict.equal is None
    assert verdict.not_compared == ("loss", "w")
    assert "give the operation a seed" in verdict.explanation


def test_what_python_draws_while_a_step_is_traced_is_drawn_again(tmp_path: Path) -> None:
    np.random.seed(5)
    w = variable("w", 3, 4)

    def loss(rows: Any) -> Any:
        return tf.reduce_mean(tf.square((rows + np.random.normal(size=3).astype("float32")) @ w))

    optimizer = K.SGD(0.1)
    optimizer.build([w])
    verdict = verdict_on(on_rows(TrainStep(loss=loss, variables=[w], optimizer=optimizer)), tmp_path / "step")
    assert verdict.equal is True, verdict.explanation


def test_a_step_that_plain_tensorflow_cannot_run_is_not_compared(tmp_path: Path) -> None:
    w = variable("w", 3, 4)

    @tf.function
    def train(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rows @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        with tf.control_dependencies([tf.debugging.assert_less(loss, 0.0, "no loss is below zero")]):
            return tf.identity(loss)

    verdict = verdict_on(on_rows(train), tmp_path / "step")
    assert verdict.equal is None
    assert "the workload's own step raised" in verdict.explanation
    assert "no loss is below zero" in verdict.explanation
    assert verdict.explanation.endswith("make it run outside stratbench first")
    assert "\n" not in verdict.explanation


def descending(w: Any, beside: Callable[[Any], object] = lambda loss: None) -> Any:
    """A step of gradient descent, and what it does with its loss besides."""

    @tf.function
    def train(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rows @ w - 1.0))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        beside(loss)
        return loss

    return train


def test_a_captured_step_that_alone_raises_is_a_fault(tmp_path: Path) -> None:
    w = variable("w", 3, 4)
    failing = descending(w, lambda loss: tf.debugging.assert_less(loss, 0.0, "no loss is below zero"))
    verdict = verdict_on(on_rows(descending(w), [w]), tmp_path / "step", captured_as=failing)
    assert verdict.equal is False
    assert "the captured step raised" in verdict.explanation
    assert "no loss is below zero" in verdict.explanation
    assert "bug in stratbench" in verdict.explanation


def test_a_variable_that_does_not_take_its_value_back_leaves_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = variable("w", 3, 4)
    refused = []

    def refuse(*_: Any) -> None:
        refused.append(w)
        raise ValueError("this variable takes no value")

    monkeypatch.setattr(type(w), "assign", refuse)
    assert verdict_on(on_rows(descending(w), [w]), tmp_path / "step").equal is True
    assert refused


@pytest.mark.parametrize(
    "assign",
    [
        lambda lost, loss: lost.assign_add(loss),
        lambda lost, loss: tf.cond(loss > 0.0, lambda: lost.assign(loss), lost.read_value),
    ],
    ids=["in the step", "in a branch"],
)
def test_a_variable_that_capture_loses_is_a_fault(assign: Callable[..., object], tmp_path: Path) -> None:
    w, lost = variable("w", 3, 4), tf.Variable(1.0, name="lost")
    model = on_rows(descending(w, partial(assign, lost)), [w, lost])
    verdict = verdict_on(model, tmp_path / "step", captured_as=descending(w))
    assert verdict.equal is False
    assert "assigns to lost" in verdict.explanation
    assert "bug in stratbench" in verdict.explanation


def test_a_variable_that_only_the_user_s_step_reads_is_named(tmp_path: Path) -> None:
    w, read = variable("w", 3, 4), tf.Variable(1.0, name="read")
    model = on_rows(descending(w, lambda loss: tf.debugging.assert_greater(loss, -read)), [w, read])
    verdict = verdict_on(model, tmp_path / "step", captured_as=descending(w))
    assert (verdict.equal, verdict.not_compared) == (True, ("read",))
    assert verdict.explanation.endswith("agree bit for bit; not compared: read")


def test_a_step_that_writes_files_is_not_run_for_the_check(tmp_path: Path) -> None:
    written = tmp_path / "loss"
    w = variable("w", 3, 4)
    step = descending(w, lambda loss: tf.io.write_file(str(written), tf.strings.as_string(loss)))
    verdict = verdict_on(on_rows(step, [w]), tmp_path / "step")
    assert verdict.equal is None
    assert "it writes files (WriteFile)" in verdict.explanation
    assert not written.exists()


def test_a_step_that_was_traced_before_adds_no_summaries(tmp_path: Path) -> None:
    events = tmp_path / "events"
    writer = tf.summary.create_file_writer(str(events), experimental_trackable=True)
    w = variable("w", 3, 4)

    def show(loss: Any) -> None:
        with writer.as_default(step=0):
            tf.summary.write("loss", loss)

    def n_records() -> int:
        writer.flush()
        return sum(1 for path in events.iterdir() for _ in tf.data.TFRecordDataset(str(path)))

    model = on_rows(descending(w, show), [w])
    model.step(tf.constant(model.batches[0][0]))
    model.step.get_concrete_function(tf.TensorSpec((None, *ROWS.shape)))
    before = n_records()
    verdict = verdict_on(model, tmp_path / "step")
    assert verdict.equal is True, verdict.explanation
    assert n_records() == before


def test_a_model_of_float64_is_held_to_float64(tmp_path: Path) -> None:
    w = tf.Variable(np.ones((3, 4)), name="w")

    def loss(rows: Any) -> Any:
        return tf.reduce_mean(tf.square(rows @ w))

    optimizer = K.SGD(0.1)
    optimizer.build([w])
    rows = [[np.random.default_rng(k).normal(size=(4, 3))] for k in range(2)]
    step = TrainStep(loss=loss, variables=[w], optimizer=optimizer)
    model = Model(step=step, spec=tf.TensorSpec((3,), tf.float64), batches=rows)
    other = replace(step, loss=lambda rows: loss(rows) * (1 + 1e-9))
    assert verdict_on(model, tmp_path / "sound").equal is True
    assert verdict_on(model, tmp_path / "mutant", captured_as=other).equal is False


def test_contract_cases_hold_their_captures(tmp_path: Path) -> None:
    first, _, w = two_updates()
    assert case_of_model(on_rows(first, [w]), tmp_path / "case").capture_verdict().equal is True
    assert ROWS.shape == (3,)
