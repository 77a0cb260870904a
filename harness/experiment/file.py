"""Find an experiment file by path or shipped name, read its YAML, and lay command-line values over it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import yaml

from harness.errors import UsageError, first_line
from harness.experiment.yaml_reader import YamlValue, parse
from strategies.errors import suggestion

_SHIPPED = Path(__file__).parent / "shipped"

_MOST_BYTES = 2**20
Document = dict[str, YamlValue]


def shipped() -> tuple[Path, ...]:
    """Paths of the ready-made experiment files, by name."""
    return tuple(sorted(_SHIPPED.glob("*.yaml")))


def find(experiment: str) -> Path:
    """Name the file of an experiment.

    Args:
        experiment: a path, or the name of a shipped file.
    Raises:
        UsageError: neither a file nor a shipped name.
    """
    path = Path(experiment)
    looks_like_path = "/" in experiment or path.suffix in {".yaml", ".yml"}
    if looks_like_path or path.is_file():
        if not path.is_file():
            raise UsageError(
                f"must be a file or a shipped experiment, got {experiment!r}, which is not there; "
                "`stratbench list experiments` shows the names",
                field="experiment",
            )
        return path
    name = experiment.strip().lower().replace("_", "-")
    names = {item.stem: item for item in shipped()}
    if name not in names:
        raise UsageError(
            f"must be a file or a shipped experiment, got {experiment!r}; {suggestion(name, sorted(names))}",
            field="experiment",
        )
    return names[name]


def read(path: Path) -> Document:
    """Read an experiment file as plain data.

    Raises:
        UsageError: unreadable, not YAML, a key given twice, or not a mapping.
    """
    try:
        document = parse(_text(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(
            f"{where}: must be YAML: {error.problem or 'cannot be read'}", field="experiment"
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} must be a readable text file: {first_line(str(error))}", field="experiment"
        ) from None
    if not isinstance(document, dict):
        raise UsageError(
            f"{path} must hold a mapping with workloads and strategies, got {type(document).__name__}",
            field="experiment",
        )
    document.setdefault("name", path.stem)
    return document


def overlay(document: Mapping[str, YamlValue], values: Mapping[str, YamlValue]) -> Document:
    """Set values by dotted path on a copy of the document.

    Args:
        document: as read.
        values: dotted path → value; a piece of digits is an index into a list.
    Raises:
        UsageError: a path leads through something that holds no such piece.
    """
    changed: Document = copy.deepcopy(dict(document))
    for path, value in values.items():
        _set(changed, path, value)
    return changed


def parse_setting(text: str) -> tuple[str, YamlValue]:
    """Read one `--set dotted.path=value`; the value is YAML.

    Raises:
        UsageError: not of that form.
    """
    path, equals, value = text.partition("=")
    if not equals or not all(piece.strip() for piece in path.split(".")):
        raise UsageError(
            f"must be dotted.path=value, got {text!r}; write for example measure.steps=20", field="set"
        )
    try:
        return path.strip(), parse(value)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise UsageError(
            f"the value must be YAML, got {value[:80]!r} ({problem}); quote it", field=f"set {path.strip()}"
        ) from None


def _text(path: Path) -> str:
    n_bytes = path.stat().st_size
    if n_bytes > _MOST_BYTES:
        raise UsageError(
            f"{path} must be an experiment of at most {_MOST_BYTES} bytes, got {n_bytes}; name another file",
            field="experiment",
        )
    return path.read_text(encoding="utf-8")


def _set(document: Document, path: str, value: YamlValue) -> None:
    *parents, last = path.split(".")
    holder: YamlValue = document
    for piece in parents:
        if isinstance(holder, dict) and holder.get(piece) is None:
            holder[piece] = {}
        holder = _get(holder, piece, path)
    if isinstance(holder, list):
        _get(holder, last, path)
        holder[int(last)] = value
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise UsageError(f"{last!r} must be inside a mapping, got {holder!r} there", field=path)


def _get(holder: YamlValue, piece: str, path: str) -> YamlValue:
    if isinstance(holder, dict) and piece in holder:
        return holder[piece]
    if isinstance(holder, list):
        if piece.isdecimal() and int(piece) < len(holder):
            return holder[int(piece)]
        raise UsageError(f"{piece!r} must be an index below {len(holder)}", field=path)
    raise UsageError(f"{piece!r} must be inside a mapping, got {holder!r} there", field=path)
