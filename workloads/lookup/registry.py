"""Every workload there is: the shipped ones by name, a user's by path."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from workloads.errors import WorkloadError
from workloads.lookup import user_file
from workloads.lookup.parameters import WorkloadParam, read_params
from workloads.optimizers import OPTIMIZERS
from workloads.protocol import Workload
from workloads.suggestion import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the table: what `list workloads` shows, and where the class is."""

    summary: str
    factory: str
    params: tuple[WorkloadParam, ...]


def _optimizer(default: str) -> tuple[WorkloadParam, ...]:
    return (
        WorkloadParam(name="optimizer", type="str", default=default, choices=tuple(OPTIMIZERS)),
        WorkloadParam(name="learning_rate", type="float", default=None),
        WorkloadParam(name="clip_global_norm", type="float", default=None),
    )


WORKLOADS: Mapping[str, Entry] = {
    "digits-mlp": Entry(
        summary="Perceptron on scikit-learn's 1,797 handwritten digits",
        factory="workloads.digits_mlp:DigitsMlp",
        params=(
            WorkloadParam(name="batch_size", type="int", default=64),
            WorkloadParam(name="units", type="int", default=256),
            *_optimizer("momentum"),
        ),
    ),
    "digits-cnn": Entry(
        summary="Convolutions with batch normalisation and dropout on the same handwritten digits",
        factory="workloads.digits_cnn:DigitsCnn",
        params=(
            WorkloadParam(name="batch_size", type="int", default=64),
            WorkloadParam(name="filters", type="int", default=16),
            WorkloadParam(name="units", type="int", default=64),
            WorkloadParam(name="dropout", type="float", default=0.25, within=(0.0, 1.0)),
            *_optimizer("momentum"),
        ),
    ),
    "word-lm": Entry(
        summary="Embedding and LSTM language model on Python's help texts, with sparse gradients",
        factory="workloads.word_lm:WordLm",
        params=(
            WorkloadParam(name="batch_size", type="int", default=32),
            WorkloadParam(name="vocabulary", type="int", default=2500),
            WorkloadParam(name="sequence_length", type="int", default=16),
            WorkloadParam(name="embedding", type="int", default=64),
            WorkloadParam(name="units", type="int", default=64),
            *_optimizer("adam"),
        ),
    ),
    "wide-mlp": Entry(
        summary="Perceptron with 17.6 MB of parameters and little arithmetic, on synthetic clusters",
        factory="workloads.wide_mlp:WideMlp",
        params=(
            WorkloadParam(name="batch_size", type="int", default=16),
            WorkloadParam(name="units", type="int", default=1200),
            WorkloadParam(name="layers", type="int", default=4),
            WorkloadParam(name="features", type="int", default=64),
            WorkloadParam(name="classes", type="int", default=10),
            WorkloadParam(name="examples", type="int", default=4096),
            *_optimizer("momentum"),
        ),
    ),
}

KERAS = Entry(
    summary="A model of keras.applications with random weights, on synthetic images: keras:MobileNetV2",
    factory="workloads.keras_application:KerasApplication",
    params=(
        WorkloadParam(name="batch_size", type="int", default=16),
        WorkloadParam(name="input", type="int", default=96),
        WorkloadParam(name="classes", type="int", default=10),
        WorkloadParam(name="examples", type="int", default=128),
        *_optimizer("momentum"),
    ),
)
_KERAS_PREFIX = "keras:"


def describe() -> list[dict[str, object]]:
    """Return the rows of `list workloads`: name, summary and params, without importing a model."""
    return [
        {"name": name, "summary": entry.summary, "params": [param.describe() for param in entry.params]}
        for name, entry in [*WORKLOADS.items(), (f"{_KERAS_PREFIX}NAME", KERAS)]
    ]


def check(reference: str, params: Mapping[str, object]) -> str:
    """Find what is wrong with a reference without running a user's file or importing TensorFlow.

    Args:
        reference: a registered name, `keras:NAME`, or `path/to/file.py:factory`.
        params: as for `resolve`.

    Returns:
        The name as records write it: kebab-case, or the path reference as it was given.

    Raises:
        WorkloadError: for an unknown name, a missing file, or a wrong parameter of a shipped workload.
    """
    if _is_file(reference):
        user_file.find(reference)
        user_file.check_batch_size(params)
        return reference
    name, entry = _find(reference)
    read_params(name, entry.params, params)
    return name


def resolve(reference: str, params: Mapping[str, object]) -> Workload:
    """Make a workload.

    Args:
        reference: a registered name with `-` or `_`, `keras:NAME` of a model of `keras.applications`, or
            `path/to/file.py:factory`, where the factory is a class or a function.
        params: given to the factory as keyword arguments.

    Raises:
        WorkloadError: when there is no such workload, or its factory does not make one from `params`.
    """
    if _is_file(reference):
        return user_file.make(reference, params)
    name, entry = _find(reference)
    values = read_params(name, entry.params, params)
    module, _, factory = entry.factory.partition(":")
    named = {"model": name.removeprefix(_KERAS_PREFIX)} if entry is KERAS else {}
    workload: Workload = getattr(import_module(module), factory)(**named, **values)
    return workload


def _is_file(reference: str) -> bool:
    return user_file.is_path(reference) and not reference.startswith(_KERAS_PREFIX)


def _find(reference: str) -> tuple[str, Entry]:
    if reference.startswith(_KERAS_PREFIX):
        return reference, KERAS
    name = reference.strip().replace("_", "-")
    if name not in WORKLOADS:
        hint = did_you_mean(name, WORKLOADS)
        message = (
            f"workload {reference!r} is not known{hint}; or give keras:NAME, or your own as "
            "path/to/file.py:factory"
        )
        raise WorkloadError(message, field="name")
    return name, WORKLOADS[name]
