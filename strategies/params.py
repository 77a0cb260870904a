"""Parameters of strategies, compressors, rules, faults and workloads: type, limits and default."""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from strategies.errors import StrategyError, first_few, suggestion

ParamValue: TypeAlias = bool | int | float | str | None
Params: TypeAlias = Mapping[str, ParamValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A parameter; None is allowed if it is the default.

    Attributes:
        form: form of a text value: an absolute path (or one below `~`), or a SHA-256 of 64 digits.
        minimum, maximum: inclusive limits.
        above, below: exclusive limits.
        choices: allowed values; any if empty.
        needs: name of another parameter, without which this one has no effect.
        tunable: values that `recommend` tries; empty for a parameter that changes the computed result.
        unit: unit of a number, such as bytes.
        summary: one-line description.
    """

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    default: ParamValue
    form: Literal["path", "sha256"] | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[ParamValue, ...] = ()
    needs: str | None = None
    tunable: tuple[ParamValue, ...] = ()
    unit: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        of = f"param {self.name!r}: "
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise StrategyError(f"{of}name must be snake_case; write small letters and _")
        if self.type not in (bool, int, float, str):
            raise StrategyError(
                f"{of}type must be bool, int, float or str, got {self.type!r}; use one of these"
            )
        for field, value in (("default", self.default), *(("tunable", value) for value in self.tunable)):
            try:
                self.read(value)
            except StrategyError as error:
                raise StrategyError(f"{of}{field}: {error}") from None

    def describe(self) -> dict[str, object]:
        """Row of a listing."""
        row: dict[str, object] = {
            "name": self.name,
            "type": self.form or self.type.__name__,
            "default": self.default,
            "unit": self.unit,
            "summary": self.summary,
        }
        return {**row, "tunable": list(self.tunable)} if self.tunable else row

    def read(self, value: object, *, of: str = "") -> ParamValue:
        """Check a value; a whole number becomes a float if the type is float.

        Args:
            of: beginning of the error message.
        Raises:
            StrategyError: the value has the wrong type or form, or is out of bounds.
        """
        if value is None and self.default is None:
            return None
        if self.type is float and type(value) is int:
            value = float(value)
        is_typed = type(value) is self.type
        if not is_typed or not self._allows(value):
            raise StrategyError(
                f"{of}{self.name} must be {self._rule(is_typed=is_typed)}, got {value!r}; {self._way_out()}"
            )
        if self.form == "path":
            return str(Path(str(value)).expanduser())
        return str(value).lower() if self.form == "sha256" else value  # type: ignore[return-value]  # typed

    def read_text(self, value: object) -> ParamValue:
        """Check a value as `read` does; a number may be text, because YAML reads `1e-3` as text."""
        if isinstance(value, str) and self.type in (int, float):
            with suppress(ValueError):  # Other texts are refused as such.
                return self.read(self.type(value))
        return self.read(value)

    def _allows(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        if self.form == "path":
            # Workers have a different working directory.
            return Path(str(value)).expanduser().is_absolute()
        if self.form == "sha256":
            return re.fullmatch("[0-9a-fA-F]{64}", str(value)) is not None
        if not isinstance(value, int | float):
            return True
        is_above = value >= _or(self.minimum, -math.inf) and value > _or(self.above, -math.inf)
        is_below = value <= _or(self.maximum, math.inf) and value < _or(self.below, math.inf)
        return is_above and is_below and math.isfinite(value)

    def _rule(self, *, is_typed: bool) -> str:
        if self.choices:
            choices = ", ".join(str(choice).lower() for choice in self.choices)
            return f"one of {choices}" if len(self.choices) > 1 else choices
        if self.form is not None:
            return "an absolute path" if self.form == "path" else "64 hexadecimal digits"
        if not is_typed:
            return "true or false" if self.type is bool else self.type.__name__
        limits = {
            "at least": self.minimum,
            "above": self.above,
            "at most": self.maximum,
            "below": self.below,
        }
        words = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
        return " and ".join(words) or "finite"

    def _way_out(self) -> str:
        if self.form is not None:
            return "write it in full" if self.form == "path" else "sha256sum prints them"
        if self.default is None:
            return "leave it out"
        usual = str(self.default).lower() if self.type is bool else repr(self.default)
        return f"leave it out for {usual}"


def _or(limit: float | None, otherwise: float) -> float:
    return otherwise if limit is None else limit


class Entry(Protocol):
    """Table entry with parameters."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[Param, ...]: ...


def filled(
    kind: str, entry: Entry, values: Mapping[str, object], entries: Iterable[Entry], *, of: str = ""
) -> dict[str, ParamValue]:
    """Check an entry's parameters and fill in defaults.

    Args:
        kind: noun for the entries, for error messages.
        values: parameter → value.
        entries: whole table, used to name the entries that take a misplaced parameter.
        of: beginning of the error message.
    Raises:
        StrategyError: a parameter belongs to another entry, or a value is not allowed.
    """
    of = f"{of}{kind} {entry.name}: "
    known = {param.name: param for param in entry.params}
    for name, value in values.items():
        if name not in known:
            takers = [other.name for other in entries if any(param.name == name for param in other.params)]
            hint = f"drop it, it is for {first_few(takers)}" if takers else suggestion(name, known)
            raise StrategyError(f"{of}takes no {name}, got {value!r}; {hint}")
    return {name: param.read(values.get(name, param.default), of=of) for name, param in known.items()}
