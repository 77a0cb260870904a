"""Plain data from YAML that a person wrote: bounded, each key once, each error with its line."""

from __future__ import annotations

import re
from collections.abc import Hashable

import yaml

YamlValue = object

_MOST_VALUES = 100_000


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
