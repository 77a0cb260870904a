"""Parameters of the shipped workloads: their types, defaults and limits, checked in one place."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.errors import WorkloadError
from workloads.suggestion import did_you_mean

Value = int | float | str | None
SIZE = "size"
"""The parameter that chooses the defaults of others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadParam:
    """One parameter of a workload.

    Args:
        name: snake_case.
        type: `int` (at least 1), `float` (above 0, or within `within`), `str` (one of `choices`), `path`
            (absolute, or below `~`) or `sha256`.
        default: None is allowed as a value where it is the default.
        choices: the values of a `str`.
        within: lower limit (included) and upper limit (excluded) of a `float`.
        at_most: upper limit (included) of a `float`.
        needs: the parameter without which it means nothing.
    """

    name: str
    type: str
    default: Value
    choices: tuple[str, ...] = ()
    within: tuple[float, float] | None = None
    at_most: float | None = None
    needs: str | None = None

    def describe(self) -> dict[str, object]:
        """Return the row that `list workloads` shows."""
        return {"name": self.name, "type": self.type, "default": self.default}

    def read(self, value: object) -> Value:
        """Return the value in its type.

        Numbers may be text, because YAML reads `1e-3` as text.

        Raises:
            WorkloadError: when it is not of the type or outside the limits.
        """
        if value is None and self.default is None:
            return None
        if self.type == "str":
            return self._read_choice(value)
        if self.type in ("path", "sha256"):
            return self._read_path(value) if self.type == "path" else self._read_digest(value)
        number = _whole(value) if self.type == "int" else _real(value)
        if number is None or not self._allows(number):
            message = f"{self.name} must be {self._rule()}, got {value!r}; the default is {self.default}"
            raise WorkloadError(message, field=self.name)
        return number

    def _read_choice(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.choices:
            hint = did_you_mean(str(value), self.choices)
            message = f"{self.name}={value!r} is not known{hint}"
            raise WorkloadError(message, field=self.name)
        return value

    def _read_path(self, value: object) -> str:
        path = Path(value).expanduser() if isinstance(value, str) else Path()
        if not path.is_absolute():
            # Workers have another working directory.
            message = f"{self.name} must be an absolute path, got {value!r}; write it in full"
            raise WorkloadError(message, field=self.name)
        return str(path)

    def _read_digest(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{64}", value):
            message = f"{self.name} must be 64 hexadecimal digits, got {value!r}; sha256sum prints them"
            raise WorkloadError(message, field=self.name)
        return value.lower()

    def _allows(self, number: float) -> bool:
        if self.type == "int":
            return number >= 1
        if self.within is not None:
            return self.within[0] <= number < self.within[1]
        return 0 < number <= (math.inf if self.at_most is None else self.at_most)

    def _rule(self) -> str:
        if self.type == "int":
            return "a positive whole number"
        if self.within is not None:
            return f"a number from {self.within[0]:g} up to but not {self.within[1]:g}"
        if self.at_most is not None:
            return f"a positive number up to {self.at_most:g}"
        return "a positive number"


def read_params(
    workload: str,
    table: tuple[WorkloadParam, ...],
    given: Mapping[str, object],
    *,
    sizes: Mapping[str, Mapping[str, Value]],
) -> dict[str, Value]:
    """Fill in the defaults and check what was given, whose names may have `-` for `_`.

    Args:
        workload: its name, for errors.
        table: its parameters.
        given: values by name.
        sizes: defaults of each value of the parameter `size`, which go before those of the table.

    Raises:
        WorkloadError: for an unknown name or a wrong value.
    """
    by_name = {param.name: param for param in table}
    read: dict[str, Value] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in by_name:
            message = f"workload {workload} has no parameter {key!r}{did_you_mean(name, by_name)}"
            raise WorkloadError(message, field=key)
        read[name] = by_name[name].read(value)
    for name, value in read.items():
        needed = by_name[name].needs
        if value is not None and needed is not None and read.get(needed) is None:
            message = f"{name} must come with {needed}, got {name} alone; give {needed}, or leave {name} out"
            raise WorkloadError(message, field=name)
    defaults = {param.name: param.default for param in table}
    if sizes:
        defaults |= sizes[str(read.get(SIZE, defaults[SIZE]))]
    return defaults | read


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
