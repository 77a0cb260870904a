"""Errors of jobs that were refused memory, as Python, NumPy, the kernel and TensorFlow tell of it."""

import errno
import re

from harness.errors import causes

_OF_TENSORFLOW = "ResourceExhaustedError"
# TensorFlow says the same of messages that are too long, and of files that are too many.
_MEMORY = re.compile(r"\bOOM\b|out of memory|allocat|MemoryError", re.IGNORECASE)


def refused_memory(error: BaseException) -> BaseException | None:
    """The refusal that an error is, or came of; None where it is another failure."""
    return next((cause for cause in causes(error) if _is_refusal(cause)), None)


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By its name, since this process may not have imported TensorFlow.
    of_tensorflow = any(kind.__name__ == _OF_TENSORFLOW for kind in type(error).__mro__)
    return isinstance(error, MemoryError) or (of_tensorflow and bool(_MEMORY.search(str(error))))
