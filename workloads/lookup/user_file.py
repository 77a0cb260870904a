"""A user's own workload: a Python file and the name of the class or function in it that makes one."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import cast

from workloads import python_file
from workloads.errors import WorkloadError
from workloads.protocol import Workload
from workloads.python_file import quote
from workloads.steps.model_and_data import ModelAndData, holds_model

_KIND = python_file.Kind(name="workload", maker="factory")


def is_path(reference: str) -> bool:
    """Tell a reference to a file from a registered name."""
    return ":" in reference or "/" in reference or reference.endswith(".py")


def find(reference: str) -> python_file.Maker:
    """The file, which exists, and the factory's name.

    Raises:
        WorkloadError: when either is missing.
    """
    return python_file.split(reference, _KIND)


def make(reference: str, params: Mapping[str, object]) -> Workload:
    """Import the file, call the factory with `params` and check what it returns.

    Raises:
        WorkloadError: when any of it fails.
    """
    factory = find(reference)
    check_batch_size(params)
    call = factory.loaded(params)
    returned = call()
    if holds_model(returned):
        returned = ModelAndData.of(returned, call=call, factory=factory)
    return check_workload(returned, where=str(factory))


def check_workload(made: object, *, where: str) -> Workload:
    """Return the object as a workload.

    Args:
        made: what a factory returned.
        where: begins the error line.

    Raises:
        WorkloadError: that names the attribute which is missing or of the wrong type.
    """
    rules: dict[str, tuple[Callable[[object], bool], str]] = {
        "name": (_is_name, "a text that is not empty"),
        "batch_size": (_is_count, "a positive whole number"),
        "flops_per_example": (_is_flops, "a positive number, or None if unknown"),
        "train_step": (callable, "a method that returns a TrainStep or a compiled keras.Model"),
        "dataset": (callable, "a method that takes a seed and returns a tf.data.Dataset"),
    }
    if inspect.isclass(made) or not any(hasattr(made, attribute) for attribute in rules):
        kind = "None" if made is None else f"a value of type {type(made).__name__}"
        received = f"the class {made.__name__}" if inspect.isclass(made) else kind
        message = (
            f"{where} must return a workload object, got {received}; end the factory with return <workload>"
        )
        raise WorkloadError(message, field="name")
    for attribute, (holds, rule) in rules.items():
        try:
            value = getattr(made, attribute)
        except AttributeError:
            message = (
                f"{where} returned a {type(made).__name__} without {attribute}; give it {attribute}, {rule}"
            )
            raise WorkloadError(message, field=attribute) from None
        if not holds(value):
            kind = type(made).__name__
            message = f"{where} returned a {kind} whose {attribute} must be {rule}, got {quote(value)}"
            raise WorkloadError(message, field=attribute)
    # From Python 3.12 on isinstance does not see attributes that a class computes by name.
    return cast("Workload", made)


def check_batch_size(params: Mapping[str, object]) -> None:
    """Check the one parameter that every workload has.

    Raises:
        WorkloadError: when it is given and not a positive whole number.
    """
    for key in ("batch_size", "batch-size"):
        if key in params and not _is_count(params[key]):
            message = f"batch_size must be a positive whole number, got {params[key]!r}"
            raise WorkloadError(message, field="batch_size")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_flops(value: object) -> bool:
    if value is None:
        return True
    # Whole numbers can be larger than any float, and so can infinity.
    return isinstance(value, int | float) and value is not True and 0 < value <= sys.float_info.max
