"""Mistakes of a user's own workload: one line for each, attributed to the user."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster import ClusterShape
from harness.errors import CaseError, UsageError
from harness.experiment.cases import Case
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.verification.worker.capture import capture
from harness.worker.jobs import batches
from harness.worker.jobs.batches import write_batches
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import load_step

pytestmark = pytest.mark.tensorflow

FILE = """
import keras
import tensorflow as tf

from workloads import TrainStep


class Good:
    name = "mine"
    batch_size = 8
    flops_per_example = None

    def train_step(self):
        weight = tf.Variable(tf.ones((4, 1)), name="weight")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])
        return TrainStep(
            loss=lambda batch: self.loss(batch @ weight), variables=[weight], optimizer=optimizer
        )

    def loss(self, outputs):
        return tf.reduce_mean(outputs)

    def dataset(self, seed):
        return tf.data.Dataset.from_tensor_slices(tf.ones((16, 4)))
"""


def case(path: Path, workers: int = 2) -> Case:
    return Case(
        id="",
        workload=WorkloadRef(reference=f"{path}:Mine"),
        strategy=StrategyRef(name="ps"),
        shape=ClusterShape(workers=workers),
    )


def write(folder: Path, mine: str) -> Path:
    path = folder / "mine.py"
    path.write_text(f"{FILE}\n\n{mine}\n")
    return path


def try_out(example: Case, folder: Path) -> None:
    capture(JobState(), example, 0, str(folder / "capture"), example.shape.n_replicas, 0, None)
    write_batches(JobState(), example, 0, str(folder / "batches"), 2, 1)


def mine(method: str, *lines: str) -> str:
    return "\n        ".join([f"class Mine(Good):\n    def {method}:", *lines])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('at import')", r"mine\.py:\d+: RuntimeError: at import"),
        ("def Mine(: pass", r"mine\.py:\d+: SyntaxError"),
        ("Other = Good", "has no factory 'Mine'"),
        ("Mine = 3", "mine"),
        ("def Mine(): return 3", r"must return \(model, dataset\), .*, got a value of type int"),
        ("def Mine(): raise KeyError('no model')", r"mine\.py:\d+: KeyError: 'no model'"),
        (
            mine("train_step(self)", "raise RuntimeError('no step')"),
            "making the step failed: .*RuntimeError: no step",
        ),
        (mine("train_step(self)", "raise SystemExit(3)"), "making the step failed: .*SystemExit: 3"),
        (mine("train_step(self)", "raise KeyboardInterrupt"), "making the step failed: .*KeyboardInterrupt"),
        (mine("train_step(self)", "raise GeneratorExit"), "making the step failed: .*GeneratorExit"),
        ("def Mine(): raise KeyboardInterrupt('no model')", "must make a workload, got .*: no model"),
        ("raise KeyboardInterrupt('at import')", "must make a workload, got .*: at import"),
        (
            mine("train_step(self)", "return TrainStep(loss=abs, variables=None, optimizer=None)"),
            "variables must be a list, such as the model's trainable_variables, got NoneType None",
        ),
        (
            mine(
                "train_step(self)",
                "return TrainStep(loss=abs, variables=[], optimizer=None, clip_global_norm=-1)",
            ),
            "clip_global_norm must be a positive number or None, got int -1",
        ),
        (
            mine(
                "train_step(self)",
                "return TrainStep(loss=abs, variables=[], optimizer=None, reduction='max')",
            ),
            "reduction must be 'mean' or 'sum', got str 'max'",
        ),
        (mine("train_step(self)", "return None"), "must be a TrainStep, .*, got NoneType"),
        (
            mine("loss(self, outputs)", "raise ValueError('no loss')"),
            r"raised ValueError: no loss \(.*mine\.py:\d+\)",
        ),
        (mine("loss(self, outputs)", "return outputs"), "loss must be a floating scalar"),
        (mine("loss(self, outputs)", "return 1.0"), "loss must be a floating scalar, got float"),
        (mine("loss(self, outputs)", "return tf.constant(1)"), "loss must be a floating scalar, got int32"),
        (mine("loss(self, outputs)", "return tf.constant(1.0)"), "got no gradient for any"),
        (mine("dataset(self, seed)", "raise OSError('no data')"), "OSError: no data"),
        (
            mine("dataset(self, seed)", "return tf.data.Dataset.from_tensor_slices(['a', 'b'])"),
            "part 0 of the dataset must be numbers, got string; convert it in dataset.map",
        ),
        (
            mine(
                "dataset(self, seed)",
                "def examples():",
                "    yield [1.0] * 4",
                "    raise ValueError('no more')",
                "return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec((4,)))",
            ),
            r"reading the dataset failed: ValueError: no more, at .*mine\.py:\d+",
        ),
        (
            mine(
                "dataset(self, seed)",
                "def scaled(row):",
                "    return row * {'a': 1}['b']",
                "return super().dataset(seed).map(scaled)",
            ),
            r"mine\.py:\d+: KeyError: 'b'",
        ),
        (
            mine(
                "dataset(self, seed)",
                "def checked(row):",
                "    tf.debugging.assert_less(row, 0.5, message='rows must be small')",
                "    return row",
                "return super().dataset(seed).map(checked)",
            ),
            r"reading the dataset failed: assertion failed: \[rows must be small\]",
        ),
        (
            mine(
                "train_step(self)",
                "net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])",
                "return net",
            ),
            r"mine\.py:Mine: model 'sequential' is not compiled; call its compile\(optimizer=…, loss=…\)",
        ),
        (
            "def Mine(): return keras.Sequential([keras.layers.Dense(1)])",
            r"must return \(model, dataset\), .*, got a value of type Sequential; compile the model, or",
        ),
        (
            "def Mine(): return keras.Sequential([keras.layers.Dense(1)]), [1.0], [2.0]",
            r"got a tuple of Sequential, list, list; .* tf\.data\.Dataset\.from_tensor_slices\(",
        ),
        (
            "def Mine():\n    def by_hand(batch): ...\n    return by_hand",
            "got the function by_hand alone; .* decorate the step with @tf.function",
        ),
        (
            "def Mine():\n    @tf.function\n    def by_hand(batch): ...\n    return by_hand",
            "got the function by_hand alone; .* and return it with",
        ),
        (
            "def Mine():\n    def by_hand(batch): ...\n    return by_hand, Good().dataset(0).batch(4)",
            "train step: must be a tf.function, got the plain function by_hand; decorate it with",
        ),
        (
            "def Mine(): return keras.Sequential([]), Good().dataset(0).map(lambda row: (row, 1.0))",
            r"must be batched, .*, got parts of shapes \(4,\), \(\); end it with \.batch\(32\)",
        ),
        (
            mine("dataset(self, seed)", "return super().dataset(seed).batch(4)"),
            r"dataset\(seed\) must return single examples of one fixed shape, got .*; leave out \.batch\(\)",
        ),
        (
            mine("dataset(self, seed)", "return super().dataset(seed).map(tf.sparse.from_dense)"),
            r"must be a dense tensor, got SparseTensorSpec; .*tf\.sparse\.to_dense",
        ),
        (
            mine(
                "dataset(self, seed)",
                "rows = tf.ragged.constant([[1.0], [2.0, 3.0]])",
                "return tf.data.Dataset.from_tensor_slices(rows)",
            ),
            r"must be a dense tensor, got RaggedTensorSpec; .*to_tensor",
        ),
        (mine("dataset(self, seed)", "return [1]"), "must return a tf.data.Dataset, got list"),
        (mine("dataset(self, seed)", "return super().dataset(seed).take(0)"), "no examples"),
        (
            mine("dataset(self, seed)", "return super().dataset(seed).filter(lambda x: False)"),
            "no examples|empty",
        ),
    ],
)
def test_a_mistake_is_one_line_and_the_users(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        try_out(case(write(tmp_path, text)), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_batch_that_does_not_suffice_for_one_shape_is_captured_for_the_others(tmp_path: Path) -> None:
    example = case(write(tmp_path, "Mine = Good"), workers=9)
    assert (
        capture(
            JobState(), example, 0, str(tmp_path / "capture"), example.shape.n_replicas, 0, None
        ).batch_size
        == 8
    )
    with pytest.raises(UsageError, match="must give each of 9 replicas an example, got 8"):
        write_batches(JobState(), example, 0, str(tmp_path / "batches"), 2, 1)


def test_a_batch_that_memory_cannot_hold_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = case(write(tmp_path, "Mine = Good"))
    monkeypatch.setattr(batches.os_process, "available_memory_bytes", lambda: 16 * 8 * 2)
    write_batches(JobState(), example, 0, str(tmp_path / "fits"), 2, 1)
    message = r"Mine.batch_size: must fit in memory, got 8"
    with pytest.raises(CaseError, match=message) as caught:
        write_batches(JobState(), example, 0, str(tmp_path / "batches"), 2, 2)
    assert caught.value.kind == "out-of-memory"


FITTED = """
import keras
import tensorflow as tf

keras.config.set_dtype_policy("mixed_float16")


class Own(keras.Model):
    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def made(kind):
    rows = keras.Input((4,))
    net = kind(rows, keras.layers.Dense(1)(rows))
    net.compile("sgd", "mse")
    x = tf.ones((16, 4))
    return net, tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)


def Mine():
    return made(keras.Model)


def Traced():
    return made(Own)
"""


@pytest.mark.parametrize("name", ["Mine", "Traced"])
def test_a_model_beside_its_data_has_the_types_that_its_file_sets(tmp_path: Path, name: str) -> None:
    import keras

    (tmp_path / "fitted.py").write_text(FITTED)
    example = replace(case(tmp_path), workload=WorkloadRef(reference=f"{tmp_path / 'fitted.py'}:{name}"))
    try:
        try_out(example, tmp_path)
    finally:
        keras.config.set_dtype_policy("float32")
    step = load_step(tmp_path / "capture")
    assert any(node.op == "Cast" and node.attrs["DstT"] == "half" for node in step.graph.nodes)
    # Its optimizer scales the loss, as that of `fit` does.
    assert any("loss_scale" in v.name or "dynamic_scale" in v.name for v in step.variables)


@pytest.mark.parametrize("step", ["Good().train_step()", "tf.function(by_hand)"])
def test_a_function_may_return_a_step_with_its_data(tmp_path: Path, step: str) -> None:
    by_hand = """
def Mine():
    weight = tf.Variable(tf.ones((4, 1)), name="weight")

    def by_hand(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch @ weight)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

"""
    path = write(tmp_path, f"{by_hand}    return {step}, Good().dataset(0).batch(4)")
    try_out(case(path), tmp_path)
    assert [v.name for v in load_step(tmp_path / "capture").variables if v.kind == "trainable"] == ["weight"]
