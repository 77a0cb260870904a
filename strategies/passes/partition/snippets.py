"""Snippets between a whole and its parts, spliced in for many variables."""

from collections.abc import Sequence

from strategies.ir.graph import DType, Node
from strategies.tf_bridge.snippet import Snippet


class PartSnippets:
    """Splices snippets; a snippet's constants are the same for all variables, and shared.

    Args:
        prefix: of the names of shared constants.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._constants: dict[int, Node] = {}

    def splice(
        self, snippet: Snippet, prefix: str, inputs: Sequence[str]
    ) -> tuple[list[Node], tuple[str, ...]]:
        """A snippet's nodes and the references of its outputs, as `Snippet.splice` returns them."""
        spliced, refs = snippet.splice(prefix, inputs)
        renamed: dict[str, str] = {}
        nodes: list[Node] = []
        for node in spliced:
            if node.op == "Const":
                # All copies of a snippet's constant share its attributes.
                shared = self._constants.get(id(node.attrs))
                if shared is None:
                    shared = node.changed(name=f"{self._prefix}constants/{len(self._constants)}", inputs=())
                    self._constants[id(node.attrs)] = shared
                    nodes.append(shared)
                renamed[node.name] = shared.name
            elif renamed:
                nodes.append(node.changed(inputs=tuple(renamed.get(ref, ref) for ref in node.inputs)))
            else:
                nodes.append(node)
        return nodes, refs

    def in_place(
        self, node: Node, snippet: Snippet, prefix: str, inputs: Sequence[str], dtype: DType
    ) -> list[Node]:
        """A snippet's nodes, of which the one that gives its only output goes by a node's name."""
        nodes, (ref,) = self.splice(snippet, prefix, inputs)
        if nodes and nodes[-1].name == ref:
            return [*nodes[:-1], nodes[-1].changed(name=node.name)]
        return [*nodes, Node(name=node.name, op="Identity", inputs=(ref,), attrs={"T": dtype})]
