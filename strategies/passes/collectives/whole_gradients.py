"""Whole gradients of variables in parts, for sums that every replica needs.

A task has neighbouring parts of other owners as one range. Ranges differ between tasks, so that the whole is
what they sum.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.ir.graph import Node, Shape
from strategies.ir.train_graph import Boundary, Contribution
from strategies.numerics.parts import join_parts, split_parts
from strategies.passes.collectives.buckets import OwnedGradient, owned_gradients
from strategies.plan.partitions import OwnedParts
from strategies.tf_bridge.snippet import TensorSpec, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGradients:
    """Boundaries of one task, with a single one in place of those of a dense gradient's ranges.

    Attributes:
        nodes: nodes that join ranges.
        boundaries: boundaries to sum; a whole gradient's has the name of its first range's.
    """

    nodes: tuple[Node, ...]
    boundaries: tuple[Boundary, ...]
    _in_ranges: Mapping[str, OwnedGradient]

    @classmethod
    def of(
        cls, shards: Iterable[OwnedParts], boundaries: Sequence[Boundary], devices: Mapping[int, str]
    ) -> "WholeGradients":
        """Join the ranges of gradients.

        Args:
            devices: rank of a local replica → its device.
        """
        shards = tuple(shards)
        dense = [b for b in boundaries if b.indices is None]
        owned = [g for rank in devices for g in owned_gradients(shards, dense, rank)]
        in_ranges = {g.boundaries[0].values: g for g in owned if len(g.boundaries) > 1}
        joined_values = {b.values for g in in_ranges.values() for b in g.boundaries[1:]}
        nodes: list[Node] = []
        wholes: list[Boundary] = []
        for b in (b for b in boundaries if b.values not in joined_values):
            gradient = in_ranges.get(b.values)
            if gradient is None or b.rank is None:
                wholes.append(b)
                continue
            axis, parts = gradient.shards.tensor.axis, gradient.boundaries
            snippet = trace(join_parts, (TensorSpec(dtype=b.dtype),) * len(parts), axis=axis)
            added, (joined,) = snippet.splice(
                f"sync/{b.values}/join/", [p.contributions[0].values for p in parts], device=devices[b.rank]
            )
            nodes += added
            whole = replace(b.contributions[0], values=joined)
            wholes.append(replace(b, shape=Shape(gradient.shards.tensor.dims), contributions=(whole,)))
        return cls(nodes=tuple(nodes), boundaries=tuple(wholes), _in_ranges=in_ranges)

    def of_ranges(
        self, combined: Mapping[str, Contribution], devices: Mapping[int, str]
    ) -> tuple[list[Node], dict[str, Contribution]]:
        """Nodes that split the sums of whole gradients, and all contributions, those of ranges among them.

        Args:
            devices: rank of a local replica → device of its sums.
        """
        nodes: list[Node] = []
        results: dict[str, Contribution] = {}
        split: dict[str, Sequence[str]] = {}
        for values, contribution in combined.items():
            gradient = self._in_ranges.get(values)
            if gradient is None:
                results[values] = contribution
                continue
            if contribution.values not in split:
                b, shards = gradient.boundaries[0], gradient.shards
                spec = TensorSpec(dtype=b.dtype, shape=Shape(shards.tensor.dims))
                snippet = trace(split_parts, (spec,), axis=shards.tensor.axis, sizes=shards.range_sizes)
                added, split[contribution.values] = snippet.splice(
                    f"sync/{values}/split/", [contribution.values], device=devices[contribution.rank]
                )
                nodes += added
            results |= {
                b.values: replace(contribution, values=ref)
                for b, ref in zip(gradient.boundaries, split[contribution.values], strict=True)
            }
        return nodes, results
