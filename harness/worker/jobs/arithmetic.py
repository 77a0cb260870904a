"""GPU arithmetic of a process: TensorFloat-32 on or off, and exact kernels for checks."""

import os

from harness.errors import UNSUPPORTED, CaseError
from harness.worker.process.job import JobState

_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def set_tf32(state: JobState, tf32: bool | None) -> None:
    """Allow or forbid TensorFloat-32 in this process's timed steps.

    Args:
        tf32: None on devices without it.
    Raises:
        CaseError: `unsupported`, if NVIDIA's libraries would not follow.
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
    """Compute in full float32 on GPUs, with the same sums from cuDNN each time, for checked steps.

    TensorFlow caches the algorithm of a convolution or product by its shape, and XLA its compiled code, so
    that switching between steps would have no effect.

    Args:
        device: of the process's replicas; other kernels stay.
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
    """Make cuDNN's sums deterministic; to call before the first convolution of a process."""
    if device == "gpu":
        # TF_DETERMINISTIC_OPS would refuse captured softmax losses on GPUs.
        os.environ["TF_CUDNN_DETERMINISTIC"] = "1"


def check_exactly(state: JobState) -> None:
    """Job that calls `compute_exactly` in a worker."""
    compute_exactly("gpu")


def allows_tf32() -> bool:
    """True if TensorFlow lets this process's kernels use TensorFloat-32."""
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def own_choice_notes(device: str, *, allowed_before: bool) -> tuple[str, ...]:
    """Note if the workload's own code switched TensorFloat-32 off, which `measure.tf32` decides.

    Args:
        allowed_before: `allows_tf32` before that code ran.
    """
    if device != "gpu" or not allowed_before or allows_tf32():
        return ()
    note = "the workload switches TF32 off itself, which strategies do not follow; set measure.tf32=false"
    return (note,)
