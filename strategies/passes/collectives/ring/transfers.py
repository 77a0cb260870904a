"""The two ends of transfers in a step: nodes that give to a worker's own transport, and that take from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.train_graph import Boundary, Transfer
from strategies.numerics.exchange import hand_over, hand_over_rows, take_back, take_back_rows, waypoint
from strategies.passes.collectives.buckets import row_shape, static_dims
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace

Dims = tuple[int, ...]
Brought: TypeAlias = Mapping[tuple[str, int], Boundary]
"""Name, the same on all replicas, and rank → what a local replica brings."""
Crossing: TypeAlias = tuple[str, str | None]
"""Tensors that cross a boundary: values, and the ids of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What comes of a transfer.

    Attributes:
        totals: name of a boundary → what crosses it. last: the node that waits.
    """

    nodes: tuple[Node, ...]
    totals: Mapping[str, Crossing]
    last: str


def give(
    transfer: Transfer,
    replicas: Sequence[Sequence[str]],
    shares: Sequence[Sequence[Shape]],
    dtype: DType,
    host: str,
) -> tuple[Node, ...]:
    """Nodes that give the sum of what a worker's replicas have, and do not wait.

    Args:
        replicas: tensors of each replica, share after share.
        shares: shapes of the tensors in each share.
    """
    snippet = trace(
        hand_over,
        tuple(TensorSpec(dtype=dtype, shape=shape) for _ in replicas for share in shares for shape in share),
        counts=tuple(map(len, shares)),
        n_replicas=len(replicas),
        dtype=dtype_number(dtype),
    )
    values = [value for own in replicas for value in own]
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", values, device=host)
    return _calling(transfer.given_token, nodes)


def all_given(prefix: str, given: Iterable[Node], host: str, after: Iterable[str] = ()) -> tuple[Node, ...]:
    """A node at which everything has been given.

    Args:
        after: nodes that wait for transfers of an earlier level, so that a step waits for one at a time.
    """
    calls = [*(node.name for node in given if node.op == "PyFunc"), *after]
    nodes, _ = trace(waypoint, ()).splice(prefix, [], device=host, control=calls)
    return nodes


def ahead(own: Iterable[Transfer], others: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """The transfers of a step in their order: by level, and of each level these before the others."""
    return tuple(sorted((*own, *others), key=attrgetter("level")))


def take(
    transfer: Transfer, shares: Sequence[Sequence[Dims]], dtype: DType, host: str, after: str
) -> tuple[tuple[Node, ...], tuple[str, ...], str]:
    """Nodes that wait for what comes.

    Args:
        shares: shapes of the tensors in each vector that comes. after: node to wait for before.
    Returns:
        the nodes, the tensors share after share, and the node that waits.
    """
    snippet = trace(take_back, (), shares=tuple(map(tuple, shares)), dtype=dtype_number(dtype))
    nodes, tensors = snippet.splice(f"{transfer.name}/take-back/", [], device=host, control=[after])
    nodes = _calling(transfer.taken_token, nodes)
    return nodes, tensors, next(node.name for node in nodes if node.op == "PyFunc")


def give_rows(transfer: Transfer, gradients: Sequence[Sequence[Boundary]], host: str) -> tuple[Node, ...]:
    """Nodes that give the rows of a worker's replicas and do not wait.

    Args:
        gradients: of each sparse gradient what each replica brings.
    """
    specs: list[TensorSpec] = []
    tensors: list[str] = []
    for replicas in gradients:
        for b in replicas:
            tensors.append(b.contributions[0].values)
            specs.append(TensorSpec(dtype=b.dtype, shape=row_shape(b)))
        for b in replicas:
            indices = b.contributions[0].indices
            assert indices is not None
            assert b.index_dtype is not None
            tensors.append(indices)
            specs.append(TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))))
    merged = tuple(replicas[0].merged for replicas in gradients)
    snippet = trace(hand_over_rows, tuple(specs), n_replicas=len(gradients[0]), merged=merged)
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", tensors, device=host)
    return _calling(transfer.given_token, nodes)


def take_rows(
    transfer: Transfer, gradients: Sequence[Boundary], host: str, after: str
) -> tuple[tuple[Node, ...], tuple[Crossing, ...], str]:
    """Nodes that wait for the rows of all workers.

    Args:
        gradients: what one replica brings of each. after: node to wait for before.
    Returns:
        the nodes, rows and ids of each gradient, and the node that waits.
    """
    types = []
    for b in gradients:
        assert b.index_dtype is not None
        types.append((dtype_number(b.dtype), dtype_number(b.index_dtype)))
    snippet = trace(
        take_back_rows, (), dims=tuple(static_dims(b)[1:] for b in gradients), dtypes=tuple(types)
    )
    nodes, tensors = snippet.splice(f"{transfer.name}/take-back/", [], device=host, control=[after])
    nodes = _calling(transfer.taken_token, nodes)
    pairs = tuple(zip(tensors[::2], tensors[1::2], strict=True))
    return nodes, pairs, next(node.name for node in nodes if node.op == "PyFunc")


def _calling(token: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a function whose call of Python has a token by now; it is traced once for all tokens."""
    return tuple(
        replace(node, attrs={**node.attrs, "token": token.encode()}) if node.op == "PyFunc" else node
        for node in nodes
    )
