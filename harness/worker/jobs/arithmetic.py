"""Arithmetic of a process's kernels on GPUs: with TensorFloat-32 or without, and as checks need it."""

import os

from harness.errors import UNSUPPORTED, CaseError
from harness.worker.process.job import JobState

_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def set_tf32(state: JobState, tf32: bool | None) -> None:
    """Let timed steps of this process round products of float32 to TensorFloat-32, or forbid it.

    Args:
        tf32: None on devices that have none, where nothing changes.
    Raises:
        CaseError: `unsupported`, when NVIDIA's libraries would not follow.
    """
    import tensorflow as tf

    if tf32 is None:
        return
    if tf32 and os.environ.get(_OVERRIDE) == "0":
        raise CaseError(
            UNSUPPORTED,
            f"NVIDIA's libraries must be free to use TF32 for measure.tf32=true, got {_OVERRIDE}=0; unset "
            "it, or set measure.tf32=false",
            stage="load",
            field="measure.tf32",
        )
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def compute_exactly(device: str) -> None:
    """Have kernels on GPUs compute in full float32, and cuDNN's give the same sums each time.

    It is for processes whose steps are checked. TensorFlow keeps the algorithm of a convolution or product by
    its shape alone, and XLA what it compiled, so that no switch between steps would reach either.

    Args:
        device: of the process's replicas; kernels of others stay as they are.
    Source:
        TensorFlow 2.21: `GetNumericOptionsForCuDnn` (core/kernels/numeric_options_utils.h),
        `AutotuneUnfusedConv` (core/kernels/conv_ops_gpu.cc), `BlasLtMatmulPlanCache`
        (core/kernels/matmul_util.cc).
    """
    if device != "gpu":
        return
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(enabled=False)
    sum_alike(device)


def sum_alike(device: str) -> None:
    """Have cuDNN give the same sums each time; before the first convolution of a process, which reads it."""
    if device == "gpu":
        # TF_DETERMINISTIC_OPS would refuse captured softmax losses on GPUs.
        os.environ["TF_CUDNN_DETERMINISTIC"] = "1"


def check_exactly(state: JobState) -> None:
    """Have this worker's steps on GPUs computed as `compute_exactly` says."""
    compute_exactly("gpu")


def allows_tf32() -> bool:
    """True if TensorFlow lets kernels of this process use TensorFloat-32."""
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def own_choice_notes(device: str, *, allowed_before: bool) -> tuple[str, ...]:
    """A note where the workload's own code has switched TensorFloat-32 off, which `measure.tf32` decides.

    Args:
        allowed_before: as `allows_tf32` before that code ran.
    """
    if device != "gpu" or not allowed_before or allows_tf32():
        return ()
    note = "the workload switches TF32 off itself, which strategies do not follow; set measure.tf32=false"
    return (note,)
