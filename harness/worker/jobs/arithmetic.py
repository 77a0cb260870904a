"""Arithmetic of a process and of a step: TensorFloat-32, exact kernels for checks, requested precision."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from harness.errors import UNSUPPORTED, CaseError
from harness.experiment.model import Precision
from harness.records.conditions import AS_WRITTEN
from harness.worker.process.job import JobState
from strategies.ir.graph import DType, Graph, Node
from strategies.ir.ops import op_set

if TYPE_CHECKING:
    import tensorflow as tf

    from strategies.capture.capture import Captured
    from workloads.protocol import TrainStep


_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def set_tf32(state: JobState, tf32: bool | None) -> None:
    """Allow or forbid TensorFloat-32 in this process's timed steps.

    Args:
        tf32: True allows it; None on devices without it.
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
    """Compute in full float32 on GPUs, with reproducible sums from cuDNN, for checked steps.

    TensorFlow caches the algorithm of a convolution or product by its shape, and XLA its compiled code, so
    that switching between steps would have no effect.

    Args:
        device: device of the process's replicas; only `gpu` has an effect.
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
    """Make cuDNN's sums deterministic; call it before the first convolution of a process."""
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
    """Note if the workload's own code switched off TensorFloat-32, against `measure.tf32`.

    Args:
        allowed_before: result of `allows_tf32` before that code ran.
    """
    if device != "gpu" or not allowed_before or allows_tf32():
        return ()
    note = "the workload switches TF32 off itself, which strategies do not follow; set measure.tf32=false"
    return (note,)


Step: TypeAlias = "TrainStep | Callable[..., tf.Tensor]"

_TYPES = {"bfloat16": DType("bfloat16"), "float16": DType("half")}


def step_in_precision(step: "Step", precision: Precision, workload: str) -> "Step":
    """Step made under the policy of a precision; see `workloads.precision.in_precision`.

    Raises:
        CaseError: `unsupported`, if the workload has set another policy.
    """
    from workloads.precision import in_precision
    from workloads.protocol import WorkloadError

    try:
        return in_precision(step, precision)
    except WorkloadError as error:
        raise _refused(str(error), workload) from error


def precision_notes(captured: "Captured", precision: Precision, workload: str) -> tuple[str, ...]:
    """Notes for the record on the dtypes of a step's computation.

    Raises:
        CaseError: `unsupported`, if nothing computes in the precision, or no loss scaling is used for
            float16.
    """
    if precision == AS_WRITTEN:
        return ()
    counts = dict(types_of_products(captured.step.graph))
    narrow = counts.pop(_TYPES[precision], 0)
    if not narrow:
        types = " and ".join(sorted(counts)) or "no floating type"
        raise _refused(
            f"train_step() must follow Keras's dtype policy for the precision {precision}, got a step that "
            f"computes in {types} alone; build it of Keras layers, or take float32",
            workload,
        )
    if precision == "float16" and not captured.scales_loss:
        raise _refused(
            "a whole train step must scale its loss for the precision float16, got one without a "
            "keras.optimizers.LossScaleOptimizer; apply one to gradients of optimizer.scale_loss(loss), or "
            "take bfloat16",
            workload,
        )
    n = narrow + sum(counts.values())
    if n == narrow:
        return ()
    wide_parts = "the model keeps the others wider"
    return (f"{narrow} of {n} matrix products and convolutions compute in {precision}; {wide_parts}",)


# Matrix products and convolutions, and the operations of their gradients.
_PRODUCTS = op_set("""
    BatchMatMul BatchMatMulV2 BatchMatMulV3 Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D
    Conv3DBackpropFilterV2 Conv3DBackpropInputV2 DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum MatMul
""")
_ELEMENTWISE = op_set("""
    AddV2 BiasAdd Exp Mean Mul RealDiv Relu Sigmoid Softmax Square Sub Sum Tanh
""")


def types_of_products(graph: Graph) -> Mapping[DType, int]:
    """Type → number of matrix products and convolutions in it; of elementwise ops if there are none."""
    return Counter(_types(graph, _PRODUCTS)) or Counter(_types(graph, _ELEMENTWISE))


def _types(graph: Graph, ops: frozenset[str]) -> Iterator[DType]:
    nodes: Iterator[Node] = chain(graph.nodes, *(function.nodes for function in graph.functions.values()))
    for node in nodes:
        dtype = node.attrs.get("T")
        if node.op in ops and isinstance(dtype, DType):
            yield dtype


def _refused(message: str, workload: str) -> CaseError:
    return CaseError(UNSUPPORTED, message, stage="capture", field=workload)
