"""Errors of jobs without memory or network, recognised by messages of Python, the kernel and TensorFlow."""

import errno
import math
import os
import re
import socket
from pathlib import Path

from harness.errors import causes

_OF_TENSORFLOW = "ResourceExhaustedError"
# TensorFlow also uses it for messages that are too long, and for too many files.
_MEMORY = re.compile(r"\bOOM\b|out of memory|allocat|MemoryError", re.IGNORECASE)
# TensorFlow's other errors without GPU memory: from the driver, CUDA's libraries, or a copy to the GPU.
_OF_CUDA = re.compile(
    "CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_ALLOC_FAILED"
    "|Dst tensor is not initialized"
)
_OF_XLA = re.compile(r"while trying to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
_ALLOCATOR = re.compile(r"by allocator (?:(?:GPU|gpu_async)_(\d+))?")
_TENSOR = re.compile(r"tensor with shape ?\[([\d,]*)\] and type (\w+)")
_GPU = re.compile(r"\bGPU:\d+")
_TYPE_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "complex64": 8, "complex128": 16, "bool": 1}


def refused_memory(error: BaseException) -> BaseException | None:
    """Refusal of memory in an error's chain of causes; None if there is none."""
    return next((cause for cause in causes(error) if _is_refusal(cause)), None)


def refusing_gpu(message: str) -> str | None:
    """GPU that refused memory to TensorFlow, such as `GPU:0`; None if it was the host.

    Source:
        messages of TensorFlow's op_kernel.cc (a tensor and its allocator), gpu_util.cc (a copy) and of XLA;
        names of allocators in gpu_process_state.cc and gpu_cudamallocasync_allocator.cc.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        return None  # XLA uses the same message on CPUs
    allocator = _ALLOCATOR.search(message)
    if allocator is not None:
        return None if allocator[1] is None else f"GPU:{allocator[1]}"
    named = _GPU.search(message)
    if named is not None:
        return named[0]
    return "a GPU" if _OF_CUDA.search(message) or _OF_XLA.search(message) else None


def refused_bytes(message: str) -> int | None:
    """Refused bytes from TensorFlow's message; None if it has none."""
    tensor, of_xla = _TENSOR.search(message), _OF_XLA.search(message)
    if of_xla is not None:
        return int(
            float(of_xla[1]) * (1 if of_xla[2] == "bytes" else 1024 ** (1 + "KMGT".index(of_xla[2][0])))
        )
    if tensor is None:
        return None
    bits = re.search(r"\d+$", tensor[2])
    of_type = _TYPE_BYTES.get(tensor[2]) or (int(bits[0]) // 8 if bits else None)
    return None if of_type is None else of_type * math.prod(map(int, filter(None, tensor[1].split(","))))


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By class name, because this process may not have imported TensorFlow.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or (_OF_TENSORFLOW in kinds and _MEMORY.search(str(error))):
        return True
    return "OpError" in kinds and bool(_OF_CUDA.search(str(error)))


_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


def way_out_offline(error: BaseException) -> str:
    """Hint for an error of code that needs the network in an isolated run; else empty."""
    if any(_is_of_network(one) for one in causes(error)) and not _has_network():
        return "; a run has no network: keep what it needs on this machine, or give --no-isolation"
    return ""


def _is_of_network(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)


def _has_network() -> bool:
    try:
        _, *routes = Path("/proc/net/route").read_text().splitlines()
    except (OSError, ValueError):
        return True
    return bool(routes)
