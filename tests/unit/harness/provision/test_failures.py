"""Messages on failures of workers, errors that mean refused memory, and the ways out they name."""

import errno
import runpy
from pathlib import Path

import numpy as np
import pytest

from harness.errors import CaseError, UsageError
from harness.provision.failures import (
    Awaited,
    failure_of,
    was_refused_by_gpu,
)
from harness.run.failure_causes import naming_batch_size, with_batch_size
from harness.worker.process.messages import JobError, Silent

AWAITED = Awaited(worker=1, what="stage_batches", waited_s=1.0, log=None, stage="load")
TOO_LONG = "Received message larger than max (8589934592 vs. 2147483647)"
OOM = "Graph execution error:\n\nOOM when allocating tensor with shape[8,8] and type float by allocator cpu"


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's, of which no more is looked at."""


def of_numpy() -> MemoryError:
    with pytest.raises(MemoryError) as caught:
        np.empty(2**48, np.float32)
    return caught.value


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (of_numpy(), "Unable to allocate 1.00 PiB for an array with shape (281474976710656,)"),
        (MemoryError(), "MemoryError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (ResourceExhaustedError(OOM), "OOM when allocating tensor with shape[8,8] and type float"),
        (caused(UsageError("dataset() must return examples", field="w"), of_numpy()), "1.00 PiB"),
    ],
    ids=["NumPy", "Python", "kernel", "TensorFlow", "in a user's code"],
)
def test_refused_memory_is_one_line_with_batch_and_way_out(error: Exception, message: str) -> None:
    failed = failure_of(JobError.of(error), AWAITED)
    assert (failed.kind, failed.stage) == ("out-of-memory", "load")
    with pytest.raises(CaseError) as caught, naming_batch_size("mine.py:Large", 4096):
        raise failed
    text = str(caught.value)
    start = "mine.py:Large.batch_size: must fit in memory, got 4096: worker 1: "
    assert text.startswith(f"{start}stage_batches was refused memory (")
    assert message in text
    assert text.endswith("); lower batch_size, or give workers more memory")
    assert "\n" not in text
    assert caught.value.__notes__ == failed.__notes__
    assert with_batch_size(caught.value, "mine.py:Large", 4096) is caught.value


def test_the_line_of_a_users_file_that_asked_for_too_much_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("# of a user\nraise MemoryError\n")
    with pytest.raises(MemoryError) as caught:
        runpy.run_path(str(model))
    text = str(failure_of(JobError.of(caught.value), AWAITED))
    assert f"was refused memory (MemoryError, at {model}:2); lower batch_size" in text


def test_another_failure_keeps_its_cause() -> None:
    failed = caused(CaseError("worker-error", "it broke", stage="load"), ValueError("why"))
    with pytest.raises(CaseError) as caught, naming_batch_size("mine.py:Large", 4096):
        raise failed
    assert caught.value is failed
    assert isinstance(failed.__cause__, ValueError)


def falls_back() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise ValueError("of the fallback") from None


def test_what_was_handled_and_cut_off_is_no_cause() -> None:
    with pytest.raises(ValueError, match="of the fallback") as caught:
        falls_back()
    assert failure_of(JobError.of(caught.value), AWAITED).kind == "worker-error"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResourceExhaustedError(TOO_LONG), "worker-error"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (ValueError("out of memory, says who wrote this"), "worker-error"),
        (UsageError("dataset() must return examples", field="w"), "user-error"),
        (
            caused(CaseError("unreachable", "a neighbour must come", stage="load"), MemoryError()),
            "unreachable",
        ),
    ],
    ids=["long message", "disk", "other words", "user", "named"],
)
def test_other_failures_keep_their_kind(error: Exception, kind: str) -> None:
    failed = failure_of(JobError.of(error), AWAITED)
    assert failed.kind == kind
    assert with_batch_size(failed, "w", 8) is failed


class OpError(Exception):
    """Named as the base of TensorFlow's errors."""


class InternalError(OpError):
    """Named as TensorFlow's."""


ON_GPU = (
    "Graph execution error:\n\nOOM when allocating tensor with shape[4096,64,112,112] and type {type} on "
    "/job:worker/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc"
)
OF_XLA = "Out of memory while trying to allocate {}. [Op:__inference_step_12]"
TO_GPU = (
    "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to "
    "/job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized."
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ResourceExhaustedError(ON_GPU.format(type="float")), "13.2 GB of the memory of GPU:1"),
        (ResourceExhaustedError(ON_GPU.format(type="bfloat16")), "6.58 GB of the memory of GPU:1"),
        (ResourceExhaustedError(ON_GPU.format(type="int64")), "26.3 GB of the memory of GPU:1"),
        (ResourceExhaustedError(ON_GPU.format(type="variant")), "the memory of GPU:1"),
        (
            ResourceExhaustedError(ON_GPU.format(type="float").replace("GPU_1_bfc", "gpu_async_1")),
            "13.2 GB of the memory of GPU:1",
        ),
        (ResourceExhaustedError(OF_XLA.format("33762398024 bytes")), "33.8 GB of the memory of a GPU"),
        (ResourceExhaustedError(OF_XLA.format("8.00GiB")), "8.59 GB of the memory of a GPU"),
        (InternalError(TO_GPU), "the memory of GPU:0"),
        (InternalError("cudaSetDevice() failed: CUDA_ERROR_OUT_OF_MEMORY"), "the memory of a GPU"),
        (InternalError("failed to create handle: CUBLAS_STATUS_ALLOC_FAILED"), "the memory of a GPU"),
    ],
)
def test_a_gpu_that_refused_memory_is_named_with_what_was_asked_for(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1")
    failed = with_batch_size(failure_of(JobError.of(error), AWAITED), "w", 4096)
    assert (failed.kind, failed.field) == ("out-of-memory", "w.batch_size")
    assert was_refused_by_gpu(failed)
    text = str(failed)
    assert f"got 4096: worker 1: stage_batches was refused {message} (" in text
    assert text.endswith(
        "; lower batch_size, or set accumulate=2 for micro-batches where the strategy has it"
    )


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError(OOM.replace("allocator cpu", "allocator gpu_host_bfc")),
        ResourceExhaustedError(OOM),
        MemoryError("of NumPy"),
    ],
)
def test_memory_of_the_host_is_no_gpus(error: Exception) -> None:
    failed = failure_of(JobError.of(error), AWAITED)
    assert failed.kind == "out-of-memory"
    assert not was_refused_by_gpu(failed)


def test_a_process_without_gpus_is_refused_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    error = ResourceExhaustedError(OF_XLA.format("8.00GiB"))
    failed = failure_of(JobError.of(error), AWAITED)
    assert failed.kind == "out-of-memory"
    assert not was_refused_by_gpu(failed)


def test_an_error_of_cuda_that_is_about_something_else_is_no_refusal() -> None:
    error = InternalError("CUDA_ERROR_ILLEGAL_ADDRESS on GPU:0")
    assert failure_of(JobError.of(error), AWAITED).kind == "worker-error"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_who_waited_in_vain_learns_how_to_wait_longer(is_stopped: bool) -> None:
    awaited = Awaited(worker=0, what="capture", waited_s=300.0, log=None, stage="capture", is_log_kept=False)
    error = failure_of(Silent(waited_s=300.0, is_stopped=is_stopped), awaited)
    assert "answer from capture within 300.0 s; " in error.message
    assert ("--timeout-factor 4" in error.message) is not is_stopped
