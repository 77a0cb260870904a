"""Arguments of a step or a loss: its batch as a whole, or its parts (`step(x, y)`)."""

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from strategies.errors import CaptureError

Returned = TypeVar("Returned")


def called_on(function: Callable[..., Returned], batch: object) -> Returned:
    """Call a function on a batch, which it gets in parts where it needs more than one argument.

    Raises:
        CaptureError: it needs other arguments than the batch has parts.
    """
    args, kwargs = arguments_of(function, batch)
    return function(*args, **kwargs)


def arguments_of(
    function: Callable[..., object], batch: object
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """How a function takes a batch: positional arguments, and those by name.

    Raises:
        CaptureError: as `called_on`.
    """
    names = _needed(function)
    if len(names) < 2:
        return (batch,), {}
    if isinstance(batch, Mapping) and set(batch) == set(names):
        return (), batch
    if isinstance(batch, tuple) and len(batch) == len(names):
        return batch, {}
    raise CaptureError(
        f"train step: must take a batch, or its parts as arguments, got the arguments {', '.join(names)} for "
        f"{_described(batch)}; let it take the batch alone and unpack that"
    )


def _needed(function: Callable[..., object]) -> list[str]:
    """Arguments that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # Not written in Python.
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _described(batch: object) -> str:
    if isinstance(batch, Mapping):
        return f"the keys {', '.join(sorted(map(str, batch)))}"
    return f"a tuple of {len(batch)}" if isinstance(batch, tuple) else "a tensor"
