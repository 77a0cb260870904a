"""Workload of a case in a worker process, with one-line errors for mistakes of its author."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.errors import HarnessError, UsageError
from harness.experiment.cases import Case

if TYPE_CHECKING:
    from workloads.protocol import Workload


def workload_of(case: Case) -> "Workload":
    """Create the workload of a case.

    Raises:
        UsageError: its name is unknown, or it cannot be created.
    """
    from workloads import registry
    from workloads.protocol import WorkloadError
    from workloads.user_file import describe_failure

    params: Mapping[str, object] = case.workload.params
    try:
        return registry.resolve(case.workload.reference, params)
    except WorkloadError as error:
        raise UsageError(str(error), field="workload") from error
    except BaseException as error:
        # No signal interrupts a worker: its code must have raised this.
        reason = describe_failure(error)
        raise UsageError(
            f"{case.workload.reference} must make a workload, got {reason}", field="workload"
        ) from error


def workload_anew(case: Case, seed: int) -> "tuple[Workload, object]":
    """Create a workload once more; its step has the names and random numbers of the captured one.

    Returns:
        The workload, and the structure of one example of its dataset.
    """
    import keras

    from workloads.precision import forget_models

    forget_models()
    workload = workload_of(case)
    structure = workload.dataset(seed).element_spec
    keras.utils.set_random_seed(seed)
    return workload, structure


@contextmanager
def users_errors(workload: "Workload", attempt: str, *, field: str = "workload") -> Iterator[None]:
    """Turn any exception of a user's code, exits and interrupts included, into one line with its location.

    Args:
        field: beginning of a message without a location.
    """
    from workloads.protocol import WorkloadError
    from workloads.user_file import describe_failure

    try:
        yield
    except HarnessError:
        raise
    except WorkloadError as error:
        raise UsageError(str(error), field=field) from error
    except BaseException as error:
        reason = describe_failure(error)
        raise UsageError(f"{attempt} failed: {reason}", field=workload.name) from error
