"""Experiment files: found by path or shipped name, and read as plain data, bounded and with each key once."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path

import yaml

from harness.errors import UsageError, first_line
from strategies.errors import suggestion

_SHIPPED = Path(__file__).parent / "shipped"

_MOST_BYTES = 2**20
_MOST_VALUES = 100_000
YamlValue = object
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


def _text(path: Path) -> str:
    n_bytes = path.stat().st_size
    if n_bytes > _MOST_BYTES:
        raise UsageError(
            f"{path} must be an experiment of at most {_MOST_BYTES} bytes, got {n_bytes}; name another file",
            field="experiment",
        )
    return path.read_text(encoding="utf-8")


def parse(text: str) -> YamlValue:
    """Read one YAML document.

    Raises:
        yaml.YAMLError: it is none, or one that is no plain data of a size that a person writes.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Before anything is made of it: a kilobyte of anchors can stand for more values than memory holds.
        _count(node, {}, set())
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("must not be nested hundreds of times") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, which YAML would silently overwrite.

    It takes 1e-3 and 1.0e12 for numbers, as YAML 1.2 does (section 10.2.1.4) and PyYAML does not.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> YamlValue:  # noqa: FBT001, FBT002 - the base class's signature
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            raise _error(str(error), node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, YamlValue]:  # noqa: FBT001, FBT002 - the base class's signature
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = key_node.value if _is_merge(key_node) else self.construct_object(key_node, deep=True)
            try:
                is_known = key in seen
            except TypeError:
                raise _error("a key must be text, got a list or mapping", key_node) from None
            if is_known:
                raise _error(f"key {key!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _count(node: yaml.Node, known: dict[yaml.Node, int], above: set[yaml.Node]) -> int:
    """How many values a node stands for, what anchors repeat counted each time.

    Args:
        known: counts of nodes. above: nodes that this one is a part of.
    """
    if node in above:
        raise _error("an anchor must not be inside of itself", node)
    if node not in known:
        above.add(node)
        pairs = isinstance(node, yaml.MappingNode)
        parts = [part for pair in node.value for part in pair] if pairs else node.value
        below = [] if isinstance(node, yaml.ScalarNode) else parts
        known[node] = 1 + sum(_count(part, known, above) for part in below)
        above.remove(node)
    if known[node] > _MOST_VALUES:
        raise _error(f"must stand for at most {_MOST_VALUES} values, anchors repeated", node)
    return known[node]


def _is_merge(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:merge")


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
