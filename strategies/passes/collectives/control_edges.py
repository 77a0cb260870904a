"""Control edges past nodes that a pass takes out."""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from strategies.ir.graph import Graph, Node, producer

_READY = frozenset({"Const", "Placeholder", "VarHandleOp"})


class Waits:
    """Lets nodes that waited for removed ones wait for what those came after.

    Args:
        removed: nodes of the graph that are no more.
        instead: removed node → the one that does its work now.
    """

    def __init__(self, graph: Graph, removed: AbstractSet[str], instead: Mapping[str, str]) -> None:
        self._by_name = graph.by_name
        self._removed = removed
        self._instead = instead
        self._found: dict[tuple[str, bool], tuple[str, ...]] = {}

    def of(self, node: Node, *, for_others: bool) -> Node:
        """A node that is kept; the same object unless it waited for a removed one.

        Args:
            for_others: it waits for what is done instead, too. Nodes that this in turn waits for must not.
        """
        if self._removed.isdisjoint(node.control_inputs):
            return node
        names: dict[str, None] = {}
        for name in node.control_inputs:
            names |= dict.fromkeys(
                self._past(name, for_others=for_others) if name in self._removed else (name,)
            )
        return replace(node, inputs=(*node.data_inputs, *(f"^{name}" for name in names)))

    def before(self, names: Iterable[str], within: Collection[str]) -> tuple[str, ...]:
        """What removed nodes came after directly, the nodes among `within` being one with them."""
        kept, _ = self._walk(names, within)
        return kept

    def _past(self, name: str, *, for_others: bool) -> tuple[str, ...]:
        if (name, for_others) not in self._found:
            before, passed = self._walk([name], self._removed)
            done = [self._instead[n] for n in passed if n in self._instead] if for_others else []
            self._found[name, for_others] = (*before, *dict.fromkeys(done))
        return self._found[name, for_others]

    def _walk(self, names: Iterable[str], within: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
        """Kept nodes that these need through nodes of `within`, by name, and what was passed on the way."""
        passed: dict[str, None] = {}
        before: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in passed or name not in within:
                continue
            passed[name] = None
            for needed in map(producer, self._by_name[name].inputs):
                if needed in self._removed:
                    waiting.append(needed)
                elif self._by_name[needed].op not in _READY:
                    before.add(needed)
        return tuple(sorted(before)), list(passed)
