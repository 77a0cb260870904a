"""Workloads by reference: shipped ones by name, with checked parameters; a user's by the path of a file."""

from collections.abc import Mapping
from importlib import import_module

from workloads import user_file
from workloads.optimizers import Training
from workloads.protocol import Workload, WorkloadError, did_you_mean
from workloads.table import KERAS, SIZE, WORKLOADS, Entry, read_params

_KERAS_PREFIX = "keras:"
_TRAINING = ("optimizer", "learning_rate", "clip_global_norm")


def describe() -> list[dict[str, object]]:
    """Return the rows of `list workloads`: name, summary, params and sizes, without importing a model."""
    return [
        {
            "name": name,
            "summary": entry.summary,
            "params": [param.describe() for param in entry.params],
            "sizes": {size: dict(values) for size, values in entry.sizes.items()},
        }
        for name, entry in [*WORKLOADS.items(), (f"{_KERAS_PREFIX}NAME", KERAS)]
    ]


def check(reference: str, params: Mapping[str, object]) -> str:
    """Check a reference without running a user's file or importing TensorFlow.

    Args:
        reference: a registered name, `keras:NAME`, or `path/to/file.py:factory`.
        params: keyword arguments of the factory.

    Returns:
        Name used in records: kebab-case, or the path reference unchanged.

    Raises:
        WorkloadError: the name is unknown, the file is missing, or a parameter of a shipped workload is
            wrong.
    """
    if _is_file(reference):
        user_file.find(reference)
        user_file.check_batch_size(params)
        return reference
    name, entry = _find(reference)
    read_params(name, entry.params, params, sizes=entry.sizes)
    return name


def resolve(reference: str, params: Mapping[str, object]) -> Workload:
    """Make a workload.

    Args:
        reference: a registered name with `-` or `_`, `keras:NAME` of a model of `keras.applications`, or
            `path/to/file.py:factory`, where the factory is a class or a function.
        params: keyword arguments of the factory.

    Raises:
        WorkloadError: there is no such workload, or its factory does not accept `params`.
    """
    if _is_file(reference):
        return user_file.make(reference, params)
    name, entry = _find(reference)
    values = read_params(name, entry.params, params, sizes=entry.sizes)
    # `read_params` has checked each type.
    training = Training(**{key: values.pop(key) for key in _TRAINING})  # type: ignore[arg-type]
    values.pop(SIZE, None)
    if entry is KERAS:
        values["model"] = name.removeprefix(_KERAS_PREFIX)
    module, _, factory = entry.factory.partition(":")
    make = getattr(import_module(module), factory)
    workload: Workload = make(name=name, training=training, **entry.fixed, **values)
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
