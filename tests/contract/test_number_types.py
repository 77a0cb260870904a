"""Numbers of every type: in batches, in variables, in what replicas send each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras
from cases import Case, case_of_model
from model import BATCH_SIZE, N_CLASSES, N_STEPS, ROWS, Model, mean_cross_entropy, on_rows
from state_models import descent, kernel

from strategies.errors import UnsupportedError
from workloads import TrainStep

LABELS_AS_FLOATS = (ROWS, tf.TensorSpec((), tf.float32))


def labelled(loss: Callable[[Any, Any, Any], Any]) -> Model:
    """A network whose classes are given as floats."""
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(N_CLASSES)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(net.trainable_variables)
    random = np.random.default_rng(0)
    fed = [
        [
            random.normal(size=(BATCH_SIZE, 3)).astype(np.float32),
            random.integers(0, N_CLASSES, BATCH_SIZE).astype(np.float32),
        ]
        for _ in range(N_STEPS)
    ]
    step = TrainStep(
        loss=lambda batch: loss(net, *batch), variables=net.trainable_variables, optimizer=optimizer
    )
    return Model(step=step, spec=LABELS_AS_FLOATS, batches=fed)


def of_class(net: Any, x: Any, y: Any) -> Any:
    return mean_cross_entropy(tf.cast(y, tf.int32), net(x))


def checked_first(net: Any, x: Any, y: Any) -> Any:
    last = N_CLASSES - 1.0
    with tf.control_dependencies([tf.debugging.assert_less_equal(y, last)]):
        return tf.reduce_mean(tf.square(net(x)[:, 0] - y)) + tf.reduce_mean(
            tf.cast(tf.equal(y, last), tf.float32) * net(x)[:, 1]
        )


def counting(dtype: Any) -> Model:
    w = kernel()
    passes = tf.Variable(tf.cast(0, dtype), trainable=False, name="passes")
    examples = tf.Variable(tf.cast(0, dtype), trainable=False, name="examples")

    def loss(x: Any) -> Any:
        passes.assign_add(tf.cast(1, dtype))
        examples.assign_add(tf.cast(tf.shape(x)[0], dtype))
        return tf.reduce_mean((x * w) ** 2)

    return on_rows(descent(loss, w))


def in_frequencies(dtype: Any = tf.complex64) -> Model:
    """A filter in the frequency domain, whose gradient is complex."""
    w = tf.Variable(tf.cast([1 + 2j, 0.5 - 1j, 2j], dtype), name="filter")

    @tf.function
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            spectrum = tf.signal.fft(tf.cast(x, dtype)) * w
            loss = tf.reduce_mean(tf.abs(tf.signal.ifft(spectrum)) ** 2)
        w.assign_sub(tf.cast(0.1, dtype) * tape.gradient(loss, w))
        return loss

    return on_rows(train)


MODELS: dict[str, Callable[[], Model]] = {
    "classes as floats": lambda: labelled(of_class),
    "bounds of floats": lambda: labelled(checked_first),
    **{
        f"counts of {name}": lambda name=name: counting(tf.as_dtype(name))
        for name in ("uint8", "int8", "uint16", "int16", "uint32", "uint64")
    },
    "complex": in_frequencies,
}
WAYS = [("all-reduce", (2,)), ("all-reduce", (1, 1)), ("sharded-update", (2, 1)), ("ps", (2, 1))]


@pytest.fixture(scope="module")
def case(shared: Path) -> Callable[[str], Case]:
    cases: dict[str, Case] = {}

    def of(name: str) -> Case:
        if name not in cases:
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            cases[name] = case_of_model(MODELS[name](), shared / name.replace(" ", "-"))
        return cases[name]

    return of


@pytest.mark.parametrize(
    ("name", "strategy", "replicas"),
    [(name, *way) for name in MODELS for way in WAYS if (name, way[0]) != ("complex", "ps")],
)
def test_it_is_equivalent(
    case: Callable[[str], Case], name: str, strategy: str, replicas: tuple[int, ...]
) -> None:
    verdict = case(name).check(case(name).plan(strategy, replicas))
    assert verdict.equivalent is True, verdict.reason
    assert not verdict.undecidable


@pytest.mark.parametrize("strategy", ["ps", "partitioned-ps", "robust-ps", "robust-all-reduce"])
def test_servers_and_rules_refuse_complex_numbers(case: Callable[[str], Case], strategy: str) -> None:
    with pytest.raises(
        UnsupportedError, match=r"take real numbers, got complex\d+ of variable 'filter'; use"
    ):
        case("complex").plan(strategy, (1, 1, 1))


def test_gradients_in_bfloat16_cross_replicas_of_one_worker(shared: Path) -> None:
    w = tf.Variable(tf.cast(np.linspace(-1, 1, 12).reshape(4, 3), tf.bfloat16), name="table")

    def loss(x: Any) -> Any:
        rows = tf.gather(w, tf.cast(tf.abs(x[:, 0]) * 2, tf.int32) % 4)
        return tf.reduce_mean(tf.cast(rows, tf.float32) ** 2 * x**2)

    model = on_rows(TrainStep(loss=loss, variables=[w], optimizer=keras.optimizers.SGD(0.1)))
    own = case_of_model(model, shared / "bfloat16-rows", float64=False)
    for strategy in ("all-reduce", "sharded-update"):
        assert own.check(own.plan(strategy, (2,), transport="ring")).equivalent is not False
