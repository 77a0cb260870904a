"""The two ends of transfers in a step: nodes that give to a worker's own transport, and that take from it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.transfer import Transfer
from strategies.numerics.exchange import hand_over, take_back, waypoint
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace

Dims = tuple[int, ...]


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


def _calling(token: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a function whose call of Python has a token by now; it is traced once for all tokens."""
    return tuple(
        replace(node, attrs={**node.attrs, "token": token.encode()}) if node.op == "PyFunc" else node
        for node in nodes
    )
