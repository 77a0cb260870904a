"""The shipped models and the batches that feed them, with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest

from workloads import TrainStep, Workload, WorkloadError
from workloads.data.arrays import digits
from workloads.data.examples import examples_of
from workloads.models.lstm import log_uniform_words
from workloads.optimizers import OPTIMIZERS
from workloads.protocol import EvaluatedWorkload
from workloads.registry import resolve
from workloads.table import WORKLOADS

pytestmark = pytest.mark.tensorflow

SMALL: dict[str, dict[str, object]] = {
    **{name: {"size": "tiny"} for name, entry in WORKLOADS.items() if entry.sizes},
    "digits-mlp": {"units": 8},
    "digits-cnn": {"filters": 2, "units": 4},
    "word-lm": {"vocabulary": 50, "sequence_length": 3, "embedding": 4, "units": 4},
    "equal-variables": {"variables": 2, "side": 4, "tables": 2, "rows": 8, "width": 4, "lookups": 3},
    "wide-mlp": {"units": 8, "layers": 2, "features": 5, "examples": 32},
}


@dataclass
class FromDataset:
    """A workload that is nothing but its data."""

    make: Callable[[int], object]
    name: str = "from-dataset"
    batch_size: int = 2
    flops_per_example: float | None = None

    def train_step(self) -> TrainStep:
        raise NotImplementedError

    def dataset(self, seed: int):  # The wrong type, in some tests.
        return self.make(seed)


def fresh_step(workload: Workload) -> TrainStep:
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    step = workload.train_step()
    assert isinstance(step, TrainStep)
    return step


def gradients(step: TrainStep, batch: object) -> tuple[float, list[Any]]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = step.loss(batch)
    assert loss.shape == ()
    return float(loss), tape.gradient(loss, [variable.value for variable in step.variables])


def train(workload: Workload, n_steps: int) -> list[float]:
    import tensorflow as tf

    step = fresh_step(workload)
    n_variables = len(step.optimizer.variables)
    examples = examples_of(workload)
    structure = examples.dataset.element_spec

    @tf.function
    def one(*parts):
        with tf.GradientTape() as tape:
            loss = step.loss(tf.nest.pack_sequence_as(structure, parts))
        values = tape.gradient(loss, [variable.value for variable in step.variables])
        step.optimizer.apply_gradients(zip(values, step.variables, strict=True))
        return loss

    sequence = examples.batches(workload.batch_size)
    losses = [float(one(*map(tf.constant, batch))) for batch in islice(sequence, n_steps)]
    assert len(step.optimizer.variables) == n_variables, "a slot was created while tracing"
    return losses


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_variable_gets_a_finite_gradient_and_the_spec_fits_the_batches(name: str) -> None:
    import tensorflow as tf

    workload = resolve(name, {**SMALL[name], "clip_global_norm": 2.0})
    step = fresh_step(workload)
    assert step.clip_global_norm == 2.0
    batch = next(examples_of(workload, seed=1).batches(6))
    for component, array in zip(examples_of(workload).components, batch, strict=True):
        assert array.shape == (6, *component.shape)
        assert array.dtype == component.dtype
    structure = examples_of(workload).dataset.element_spec
    loss, values = gradients(step, tf.nest.pack_sequence_as(structure, [tf.constant(part) for part in batch]))
    assert np.isfinite(loss)
    for value in values:
        assert np.isfinite(tf.convert_to_tensor(value).numpy()).all()
    assert len({variable.path for variable in step.variables}) == len(step.variables)


@pytest.mark.parametrize("name", ["digits-mlp", "word-lm", "wide-mlp"])
def test_the_loss_is_a_mean_over_examples(name: str) -> None:
    workload = resolve(name, SMALL[name])
    step = fresh_step(workload)
    whole = next(examples_of(workload, seed=1).batches(6))
    parts = [[array[:2] for array in whole], [array[2:] for array in whole]]
    weighted = sum(
        share * float(step.loss(tuple(part))) for share, part in zip((2 / 6, 4 / 6), parts, strict=True)
    )
    assert float(step.loss(tuple(whole))) == pytest.approx(weighted, rel=1e-5)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_optimizer_has_its_slots_before_the_first_step(optimizer: str) -> None:
    workload = resolve("digits-mlp", {"units": 4, "optimizer": optimizer, "learning_rate": 0.003})
    step = fresh_step(workload)
    assert step.optimizer.built
    assert float(step.optimizer.learning_rate) == pytest.approx(0.003)
    n_slots = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1}[optimizer]
    shapes = [tuple(variable.shape) for variable in step.optimizer.variables]
    for variable in step.variables:
        wanted = [tuple(other.shape) for other in step.variables].count(tuple(variable.shape)) * n_slots
        assert shapes.count(tuple(variable.shape)) == wanted


def test_digits_are_evaluated_and_a_regression_is_not() -> None:
    assert isinstance(resolve("digits-mlp", SMALL["digits-mlp"]), EvaluatedWorkload)
    assert not isinstance(resolve("linear-regression", {}), EvaluatedWorkload)


def test_the_cnn_has_forward_state_and_random_state() -> None:
    step = fresh_step(resolve("digits-cnn", SMALL["digits-cnn"]))
    batch = next(examples_of(resolve("digits-cnn", {})).batches(32))
    first, second = (float(step.loss(tuple(batch))) for _ in range(2))
    assert first != second


def test_the_language_model_reads_rows_and_has_one_sparse_gradient() -> None:
    import tensorflow as tf

    workload = resolve("word-lm", SMALL["word-lm"])
    step = fresh_step(workload)
    batch = next(examples_of(workload, seed=1).batches(6))
    _, values = gradients(step, tuple(batch))
    sparse = [isinstance(value, tf.IndexedSlices) for value in values]
    assert sparse == [True] + [False] * (len(values) - 1)
    assert tuple(step.variables[0].shape) == (50, 4)
    np.testing.assert_array_equal(np.sort(values[0].indices), np.sort(batch[0].ravel()))

    traced = tf.function(lambda *parts: step.loss(parts)).get_concrete_function(*map(tf.constant, batch))
    assert "ResourceGather" in {node.type for node in traced.graph.get_operations()}


def test_the_words_that_follow_are_the_same_text_one_word_on() -> None:
    words, following = next(examples_of(resolve("word-lm", SMALL["word-lm"])).batches(20))
    np.testing.assert_array_equal(words[:, 1:], following[:, :-1])
    assert 0 <= words.min() <= words.max() < 50


def test_the_wide_model_has_sixteen_mebibytes_of_float32() -> None:
    step = fresh_step(resolve("wide-mlp", {}))
    assert {variable.dtype for variable in step.variables} == {"float32"}
    assert sum(4 * int(np.prod(variable.shape)) for variable in step.variables) >= 16 * 2**20


@pytest.mark.parametrize(
    ("name", "params", "n_steps", "share"),
    [
        ("digits-mlp", {}, 100, 0.3),
        ("digits-cnn", {}, 60, 0.3),
        ("word-lm", {}, 60, 0.85),
        ("wide-mlp", {"units": 128}, 60, 0.5),
        ("linear-regression", {"features": 8}, 60, 0.2),
        ("gpt-small", {"size": "tiny"}, 60, 0.9),
        ("lm1b", {"size": "tiny", "learning_rate": 0.3}, 100, 0.85),
        ("dlrm", {"batch_size": 64}, 100, 0.92),
        ("ncf", {"size": "tiny"}, 100, 0.95),
    ],
)
def test_the_default_optimizer_learns(
    name: str, params: dict[str, object], n_steps: int, share: float
) -> None:
    losses = train(resolve(name, params), n_steps)
    assert np.mean(losses[-10:]) < share * np.mean(losses[:3])


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_batches_depend_on_the_seed_alone(name: str) -> None:
    import tensorflow as tf

    def first(seed: int) -> list[np.ndarray]:
        return [
            array
            for batch in islice(examples_of(resolve(name, SMALL[name]), seed=seed).batches(5), 9)
            for array in batch
        ]

    before = first(3)
    tf.random.set_seed(99)
    tf.random.uniform([2])
    for one, other in zip(before, first(3), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any((one != other).any() for one, other in zip(before, first(4), strict=True))


def test_an_epoch_holds_every_digit_once_and_the_next_has_another_order() -> None:
    images, labels = digits()
    assert images.shape == (1438, 8, 8)
    assert digits(held_out=True)[0].shape == (1797 - 1438, 8, 8)
    assert (images.min(), images.max()) == (0.0, 1.0)
    epochs = list(islice(examples_of(resolve("digits-mlp", {})).batches(1438), 2))
    for batch in epochs:
        np.testing.assert_array_equal(np.sort(batch[1]), np.sort(labels))
    assert (epochs[0][1] != epochs[1][1]).any()


def test_a_users_unseeded_shuffle_is_the_same_in_every_process() -> None:
    import tensorflow as tf

    workload = FromDataset(lambda seed: tf.data.Dataset.range(50).shuffle(50))
    runs = [
        [batch[0].tolist() for batch in islice(examples_of(workload, seed=7).batches(10), 8)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_finite_dataset_is_read_on_across_its_end() -> None:
    import tensorflow as tf

    workload = FromDataset(lambda seed: tf.data.Dataset.range(3))
    rows = [batch[0].tolist() for batch in islice(examples_of(workload).batches(5), 3)]
    assert rows == [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0], [1, 2, 0, 1, 2]]


def test_components_are_named_by_their_place_in_the_order_of_the_feeds() -> None:
    import tensorflow as tf

    def structure(seed: int) -> tf.data.Dataset:
        example = ({"b": tf.zeros([4, 2]), "a": tf.ones([4], tf.int64)}, (tf.zeros([4], tf.bool),))
        return tf.data.Dataset.from_tensor_slices(example)

    workload = FromDataset(structure)
    spec = examples_of(workload).components
    assert [(part.name, part.dtype, part.shape) for part in spec] == [
        ("0/a", "int64", ()),
        ("0/b", "float32", (2,)),
        ("1/0", "bool", ()),
    ]
    arrays = next(examples_of(workload).batches(3))
    assert [array.shape for array in arrays] == [(3,), (3, 2), (3,)]
    assert [
        part.name for part in examples_of(FromDataset(lambda seed: tf.data.Dataset.range(2))).components
    ] == ["0"]


def ragged(seed: int) -> object:
    import tensorflow as tf

    rows = tf.ragged.constant([[1], [1, 2]])
    return tf.data.Dataset.from_tensor_slices((tf.zeros([2]), rows))


def varying(seed: int) -> object:
    import tensorflow as tf

    return tf.data.Dataset.range(1, 4).map(lambda n: {"x": n, "y": tf.zeros(tf.stack([n]))})


def sparse(seed: int) -> object:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(3)))


def empty(seed: int) -> object:
    import tensorflow as tf

    return tf.data.Dataset.range(0)


def unlabelled(seed: int) -> object:
    import tensorflow as tf

    return tf.data.Dataset.range(3).map(lambda n: (n, None))


def nested(seed: int) -> object:
    import tensorflow as tf

    return tf.data.Dataset.range(6).window(2)


def raising(seed: int) -> object:
    message = "no such\nfolder"
    raise OSError(message)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (ragged, ["part 1", "got RaggedTensorSpec"]),
        (varying, ["part y", "one fixed shape", "(None,)", "tf.ensure_shape"]),
        (sparse, ["part 0", "got SparseTensorSpec"]),
        (empty, ["no examples"]),
        (unlabelled, ["part 1", "got NoneTensorSpec"]),
        (nested, ["part 0", "got DatasetSpec"]),
        (lambda seed: [1, 2], ["must return a tf.data.Dataset", "got list", "from_tensor_slices"]),
        (raising, ["test_workloads.py:", "OSError: no such folder"]),
    ],
)
def test_a_dataset_that_cannot_be_fed_is_refused_in_one_line(
    make: Callable[[int], object], parts: list[str]
) -> None:
    with pytest.raises(WorkloadError) as caught:
        examples_of(FromDataset(make))
    assert caught.value.field == "dataset"
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_dataset_that_turns_out_empty_or_raises_while_read_is_refused() -> None:
    import tensorflow as tf

    nothing = FromDataset(lambda seed: tf.data.Dataset.range(3).filter(lambda n: n > 5))
    with pytest.raises(WorkloadError, match="no examples"):
        next(examples_of(nothing, seed=0).batches(2))

    def rows():
        yield 1.0
        message = "the disk\nis gone"
        raise ValueError(message)

    spec = tf.TensorSpec([], tf.float32)
    broken = FromDataset(lambda seed: tf.data.Dataset.from_generator(rows, output_signature=spec))
    with pytest.raises(WorkloadError, match=r"reading the dataset failed: .*ValueError: the disk") as caught:
        next(examples_of(broken, seed=0).batches(2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch_size", [0, -1, True, 2.0])
def test_a_batch_size_that_is_no_count_is_refused(batch_size: object) -> None:
    with pytest.raises(WorkloadError, match="positive whole number"):
        examples_of(resolve("digits-mlp", {})).batches(batch_size)  # type: ignore[arg-type]


def test_a_text_shorter_than_the_sequence_is_refused() -> None:
    with pytest.raises(WorkloadError, match="sequence_length must be below") as caught:
        examples_of(resolve("word-lm", {"sequence_length": 10**7}))
    assert caught.value.field == "sequence_length"


USERS_FILE = """
import tensorflow as tf
from workloads import TrainStep

class Line:
    name = "line"
    batch_size = 4
    flops_per_example = None

    def __init__(self, whole=False):
        self.whole = whole

    def train_step(self):
        import keras
        slope = tf.Variable(0.0, name="slope")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([slope])
        loss = lambda batch: tf.reduce_mean((slope * batch["x"] - batch["y"]) ** 2)

        @tf.function
        def step(batch):
            with tf.GradientTape() as tape:
                value = loss(batch)
            optimizer.apply_gradients([(tape.gradient(value, slope), slope)])
            return value

        return step if self.whole else TrainStep(loss=loss, variables=[slope], optimizer=optimizer)

    def dataset(self, seed):
        x = tf.random.stateless_uniform([16], [seed, 0])
        return tf.data.Dataset.from_tensor_slices({"y": 3.0 * x, "x": x})
"""


def test_a_users_own_file_gives_a_step_of_either_kind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "line.py"
    path.write_text(USERS_FILE)
    for whole in (False, True):
        workload = resolve(f"{path}:Line", {"whole": whole})
        step = workload.train_step()
        assert isinstance(step, TrainStep) is not whole
        assert [part.name for part in examples_of(workload).components] == ["x", "y"]
        loss = step.loss if isinstance(step, TrainStep) else step
        values = [float(loss({"x": x, "y": y})) for x, y in islice(examples_of(workload).batches(4), 8)]
        assert values[4] < values[0] if whole else values[4] == values[0]


def test_a_model_of_keras_trains_on_images_of_its_size() -> None:
    workload = resolve("keras:MobileNetV2", {"input": 32, "classes": 3, "examples": 4, "batch_size": 2})
    step = fresh_step(workload)
    assert [part.shape for part in examples_of(workload).components] == [(32, 32, 3), ()]
    loss, grads = gradients(step, tuple(next(examples_of(workload).batches(2))))
    assert np.isfinite(loss)
    assert len(grads) == len(step.variables) > 100
    assert all(gradient is not None for gradient in grads)


def test_a_model_that_keras_does_not_have_is_named() -> None:
    with pytest.raises(WorkloadError, match="no model 'MobileNetV9'; did you mean 'MobileNetV"):
        resolve("keras:MobileNetV9", {}).train_step()


@pytest.mark.parametrize("model", ["MobileNet", "MobileNetV2", "MobileNetV3Small"])
def test_a_narrow_model_of_keras_keeps_its_classes(model: str) -> None:
    """The classifier of some is a convolution, with layers after it that shape its output."""
    params = {"input": 32, "classes": 7, "examples": 4, "batch_size": 2, "width_multiplier": 0.5}
    workload = resolve(f"keras:{model}", params)
    narrow = fresh_step(workload)
    batch = next(examples_of(workload).batches(2))
    assert np.isfinite(float(narrow.loss(tuple(batch))))
    assert tuple(narrow.variables[-1].shape) == (7,)
    n_parameters = sum(int(np.prod(variable.shape)) for variable in narrow.variables)
    wide = fresh_step(resolve(f"keras:{model}", {**params, "width_multiplier": 1}))
    assert tuple(wide.variables[-1].shape) == (7,)
    assert 2 * n_parameters < sum(int(np.prod(variable.shape)) for variable in wide.variables)


@pytest.mark.parametrize("model", ["ConvNeXtTiny", "EfficientNetB0"])
def test_a_model_of_keras_that_cannot_be_narrowed_is_refused_in_one_line(model: str) -> None:
    workload = resolve(f"keras:{model}", {"input": 32, "width_multiplier": 0.5})
    with pytest.raises(WorkloadError, match=rf"must be 1 for {model}, got 0\.5, .*; leave it out") as caught:
        fresh_step(workload)
    assert caught.value.field == "width_multiplier"
    assert "\n" not in str(caught.value)


def test_words_of_a_sampled_softmax_are_drawn_as_tensorflow_s_sampler_draws_them() -> None:
    """Frequency of each word among the drawn ones, TensorFlow's and as declared."""
    import keras
    import tensorflow as tf

    n, vocabulary, n_steps = 10, 40, 4_000
    draws, right = keras.random.SeedGenerator(1), tf.range(vocabulary)

    @tf.function
    def ours() -> list[tf.Tensor]:
        drawn, expected, of_drawn = log_uniform_words(right, n, vocabulary, draws)
        tf.debugging.assert_near(of_drawn, tf.gather(expected[:, 0], drawn))
        return [drawn, expected[:, 0]]

    @tf.function
    def tensorflow_s() -> tf.Tensor:
        classes = tf.cast(right, tf.int64)[None]
        return tf.random.log_uniform_candidate_sampler(
            classes, vocabulary, n, unique=True, range_max=vocabulary, seed=2
        ).sampled_candidates

    def share(ids: np.ndarray) -> np.ndarray:
        assert all(len(set(ids_of_row)) == n for ids_of_row in ids)
        return np.bincount(ids.ravel(), minlength=vocabulary) / n_steps

    ids, expected = map(np.stack, zip(*(ours() for _ in range(n_steps)), strict=True))
    deviation = np.sqrt(0.25 / n_steps)
    theirs = share(np.stack([tensorflow_s() for _ in range(n_steps)]))
    np.testing.assert_allclose(share(ids), theirs, atol=6 * np.sqrt(2) * deviation)
    np.testing.assert_allclose(expected.mean(axis=0), share(ids), atol=6 * deviation)


def test_the_right_word_is_no_negative_of_its_own() -> None:
    import keras
    import tensorflow as tf

    n, vocabulary = 30, 31  # all words but one
    right = tf.zeros([1, 1], tf.int64)
    sampled = log_uniform_words(right, n, vocabulary, keras.random.SeedGenerator(1))
    loss = tf.nn.sampled_softmax_loss(
        weights=tf.one_hot([0] * vocabulary, 1) * tf.constant([[100.0]] + [[0.0]] * (vocabulary - 1)),
        biases=tf.zeros([vocabulary]),
        labels=right,
        inputs=tf.ones([1, 1]),
        num_sampled=n,
        num_classes=vocabulary,
        sampled_values=sampled,
    )
    assert 0 in sampled[0]
    np.testing.assert_allclose(loss, 0, atol=1e-6)
