"""References to strategies and workloads as in the file: `ps:staleness=2`, `model.py:factory`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UsageError
from harness.written_values import Scalar, home_expanded, kebab, parse_scalar, scalar_text

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CONTINUES = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\s*=")
_PLAN = ".json"
_KERAS = "keras"
BATCH_SIZE = "batch_size"
"""Parameter that every workload has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyRef:
    """A strategy's kebab-case name and the parameters given for it (snake_case keys).

    A name may also be `path.py:Builder`, a user's own, or the path of a plan, ending in .json.
    """

    name: str
    params: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    @property
    def is_builder(self) -> bool:
        return ".py:" in self.name

    @property
    def is_file(self) -> bool:
        """True if the reference names a file, False if it names a registered strategy."""
        return self.is_builder or self.is_plan

    @property
    def is_plan(self) -> bool:
        return self.name.endswith(_PLAN)

    def __str__(self) -> str:
        return self.name + _params_text(self.params)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRef:
    """A workload's reference (registered name, `keras:NAME` or `path.py:factory`) and parameters for it."""

    reference: str
    params: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    @property
    def is_path(self) -> bool:
        """True if the reference names a file, False if it names a shipped workload."""
        return _is_path(self.reference)

    @property
    def file(self) -> Path | None:
        """Absolute path of a user's file; None for a shipped workload."""
        return file_of(self.reference).absolute() if self.is_path else None

    @property
    def batch_size(self) -> int | None:
        """Batch size in the parameters; None for the workload's own."""
        batch_size = self.params.get(BATCH_SIZE)
        return batch_size if isinstance(batch_size, int) else None

    def __str__(self) -> str:
        return self.reference + _params_text(self.params)


def without_batch(params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Parameters of a workload except its batch size."""
    return {key: value for key, value in params.items() if key != BATCH_SIZE}


def parse_strategy(text: str, *, field: str) -> StrategyRef:
    """Read `name`, `path/to/file.py:Builder`, either with `:key=value,key=value`, or `path/to/plan.json`.

    Args:
        field: dotted path, for the error.
    Raises:
        UsageError: the text is none of these.
    """
    text = text.strip()
    name, colon, rest = text.partition(":")
    if name.endswith(_PLAN):
        if colon:
            raise UsageError(_no_parameters(rest), field=field)
        return StrategyRef(name=home_expanded(name))
    if _is_path(text):
        reference, params = _in_file(text, field, "path.py:Builder, or as plan.json")
        return StrategyRef(name=reference, params=params)
    return StrategyRef(name=_name(name, field), params=_params(rest, field) if colon else {})


def parse_workload(text: str, *, field: str) -> WorkloadRef:
    """Read `name`, `keras:NAME` or `path/to/file.py:factory`, each with `:key=value,key=value` or without.

    Args:
        field: dotted path, for the error.
    Raises:
        UsageError: the text is none of these.
    """
    text = text.strip()
    if _is_path(text):
        reference, params = _in_file(text, field, "path.py:factory")
        return WorkloadRef(reference=reference, params=params)
    name, colon, rest = text.partition(":")
    if not _is_keras(text):
        return WorkloadRef(reference=_name(name, field), params=_params(rest, field) if colon else {})
    model, colon, rest = rest.partition(":")
    if not model.isidentifier():
        raise UsageError(f"a model must be named, as keras:MobileNetV2:input=96, got {text!r}", field=field)
    return WorkloadRef(reference=f"{_KERAS}:{model}", params=_params(rest, field) if colon else {})


def strategy_from(value: object, *, field: str) -> StrategyRef:
    """Read one item of the file's `strategies`: text, or a mapping with `name` and parameters."""
    if isinstance(value, str):
        return parse_strategy(value, field=field)
    name, params = _mapping(value, field)
    ref = parse_strategy(name, field=f"{field}.name")
    if ref.is_plan and params:
        raise UsageError(_no_parameters(", ".join(params)), field=field)
    return StrategyRef(name=ref.name, params=_together(ref.params, params, field))


def workload_from(value: object, *, field: str) -> WorkloadRef:
    """Read one item of the file's `workloads`: text, or a mapping with `name` and parameters."""
    if isinstance(value, str):
        return parse_workload(value, field=field)
    name, params = _mapping(value, field)
    ref = parse_workload(name, field=f"{field}.name")
    return WorkloadRef(reference=ref.reference, params=_together(ref.params, params, field))


def file_of(reference: str) -> Path:
    """Path of the file in a reference to a user's builder or factory, or to a plan."""
    return Path(reference.partition(":")[0])


def split_list(text: str, *, field: str) -> tuple[str, ...]:
    """Split a comma list; a piece `key=value` continues the reference before it.

    `ps:staleness=2,sync=true,all-reduce` is `ps:staleness=2,sync=true` and `all-reduce`.

    Raises:
        UsageError: a piece is empty, or a parameter precedes the first name.
    """
    references: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            raise UsageError(f"a comma list must have a name between commas, got {text!r}", field=field)
        if not _CONTINUES.match(piece):
            references.append(piece)
        elif not references:
            raise UsageError(
                f"a parameter must follow a name, got {piece!r} first; write name:{piece}", field=field
            )
        else:
            references[-1] += ("," if _has_params(references[-1]) else ":") + piece
    return tuple(references)


def _is_path(text: str) -> bool:
    location = text.partition(":")[0]
    return "/" in location or location.endswith(".py")


def _is_keras(text: str) -> bool:
    return text.partition(":")[0] == _KERAS


def _has_params(text: str) -> bool:
    return text.count(":") > (_is_path(text) or _is_keras(text))


def _in_file(text: str, field: str, form: str) -> tuple[str, dict[str, Scalar]]:
    path, _, rest = text.partition(":")
    attribute, colon, params = rest.partition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        raise UsageError(f"a file must be given as {form}, got {text!r}", field=field)
    return f"{home_expanded(path)}:{attribute}", _params(params, field) if colon else {}


def _name(text: str, field: str) -> str:
    if not _NAME.fullmatch(text.strip()):
        hint = _quoted(text)
        raise UsageError(f"a name must be letters, digits and dashes, got {text!r}{hint}", field=field)
    return kebab(text)


def _quoted(piece: str) -> str:
    """Instruction for a parameter cut off by a comma of YAML."""
    return '; in YAML quote the whole, as "name:key=value,key=value"' if _CONTINUES.match(piece) else ""


def _no_parameters(received: str) -> str:
    return f"a plan takes no parameters, got {received!r}; edit the file"


def _params(text: str, field: str) -> dict[str, Scalar]:
    params: dict[str, Scalar] = {}
    for piece in text.split(","):
        key, equals, value = piece.partition("=")
        if not equals or not _KEY.fullmatch(key.strip()) or not value.strip():
            raise UsageError(
                f"parameters must be key=value, got {piece!r}; write name:key=value,key=value", field=field
            )
        _add(params, key, parse_scalar(value), field)
    return params


def _add(params: dict[str, Scalar], key: str, value: Scalar, field: str) -> None:
    key = key.strip().replace("-", "_")
    if key in params:
        raise UsageError(f"parameter {key!r} must be given once, got it twice", field=field)
    params[key] = value


def _together(ahead: Mapping[str, Scalar], beside: Mapping[str, Scalar], field: str) -> dict[str, Scalar]:
    """Combine parameters after a name with those of its mapping; none may be given twice."""
    params = dict(ahead)
    for key, value in beside.items():
        _add(params, key, value, field)
    return params


def _mapping(value: object, field: str) -> tuple[str, dict[str, Scalar]]:
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise UsageError(
            f"must be a name, name:key=value or a mapping with name, got {value!r} ({kind})", field=field
        )
    name = value.get("name")
    if not isinstance(name, str):
        raise UsageError(f"a mapping must have a text under name, got {name!r}", field=f"{field}.name")
    params: dict[str, Scalar] = {}
    for key, item in value.items():
        if key == "name":
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            hint = _quoted(key) if isinstance(key, str) else ""
            raise UsageError(f"a parameter's name must be a word, got {key!r}{hint}", field=field)
        if not (item is None or isinstance(item, bool | int | float | str)):
            kind = type(item).__name__
            raise UsageError(
                f"must be a number, text, true, false or null, got {kind}", field=f"{field}.{key}"
            )
        _add(params, key, item, field)
    return name, params


def _params_text(params: Mapping[str, Scalar]) -> str:
    if not params:
        return ""
    return ":" + ",".join(f"{key}={scalar_text(params[key])}" for key in sorted(params))
