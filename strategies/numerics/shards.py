"""Sums of which every member gets its share, and shares of which every member gets all."""

import math
from collections.abc import Sequence

import tensorflow as tf

from strategies.numerics.collectives import gathered
from strategies.numerics.vectors import apart, joined


def reduce_scatter(
    *values: tf.Tensor,
    owners: tuple[int, ...],
    rank: int,
    order: tuple[int, ...],
    pairs: tuple[tuple[int, int], ...],
    keys: tuple[int, ...],
    hint: str,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Sum over all members those tensors that this one owns, which sends the others what they own.

    Every two members exchange their shares for each other. TensorFlow's all-to-all would do it in one
    operation, but mixes up messages in a group of twelve members or more.

    Args:
        values: tensors of one type and of static shape.
        owners: member that gets the sum of each.
        rank: this member.
        order: of members in a group.
        pairs: (other member, key of the group of the two).
        keys: an instance key for each piece of what two members exchange; pieces travel at the same time.
        hint: TensorFlow's implementation.
    Returns:
        the sums of what this member owns, and an operation that runs after all exchanges.
    """
    shares = {owner: joined(*_owned(values, owners, owner)) for owner in sorted(set(owners))}
    lengths = {owner: share.shape[0] for owner, share in shares.items()}
    own_length = lengths.get(rank, 0)
    terms = {rank: shares[rank]} if own_length else {}
    exchanged = []
    for other, group_key in pairs:
        length = max(own_length, lengths.get(other, 0))
        if not length:
            continue
        sent = _padded(shares.get(other), length, values[0].dtype)
        both = _gathered(sent, (2, group_key), keys, hint)
        exchanged.append(both)
        if own_length:
            theirs = tf.split(both, 2)[int(order.index(other) > order.index(rank))]
            terms[other] = theirs if own_length == length else theirs[:own_length]
    # In the order of ranks, so that the sum does not depend on who makes it.
    total = [tf.add_n([terms[r] for r in sorted(terms)])] if terms else []
    own = _owned(values, owners, rank)
    return (apart(total[0], shapes=[tuple(v.shape) for v in own]) if total else []), tf.group(*exchanged)


def all_gather(
    *own: tf.Tensor,
    shapes: tuple[tuple[int, ...], ...],
    owners: tuple[int, ...],
    rank: int,
    order: tuple[int, ...],
    group_key: int,
    keys: tuple[int, ...],
    dtype: int,
    hint: str,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Every member's tensors for all.

    Args:
        own: this member's tensors.
        shapes: of all members' tensors. owners: whose each is.
        order: of members in the group.
        keys: an instance key for each piece; pieces travel at the same time.
        dtype: number of the type of all tensors.
        hint: TensorFlow's implementation.
    Returns:
        the other members' tensors, in the order of `shapes`, and an operation that runs after the exchange.
    """
    sizes = {r: [math.prod(s) for s, o in zip(shapes, owners, strict=True) if o == r] for r in order}
    longest = max(map(sum, sizes.values()))
    share = _padded(joined(*own) if own else None, longest, tf.as_dtype(dtype))
    gathered = _gathered(share, (len(order), group_key), keys, hint)
    pieces = iter(_split(gathered, [n for r in order for n in (*sizes[r], longest - sum(sizes[r]))]))
    theirs = {}
    for member in order:
        theirs[member] = iter([next(pieces) for _ in sizes[member]])
        next(pieces)  # padding
    others = [
        tf.reshape(next(theirs[owner]), shape)
        for owner, shape in zip(owners, shapes, strict=True)
        if owner != rank
    ]
    return others, tf.group(gathered)


def _owned(values: Sequence[tf.Tensor], owners: Sequence[int], member: int) -> list[tf.Tensor]:
    return [v for v, owner in zip(values, owners, strict=True) if owner == member]


def _split(flat: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    return [flat] if len(sizes) == 1 else tf.split(flat, list(sizes))


def _padded(flat: tf.Tensor | None, length: int, dtype: tf.DType) -> tf.Tensor:
    if flat is None:
        return tf.zeros([length], dtype)
    missing = length - flat.shape[0]
    return tf.pad(flat, [[0, missing]]) if missing else flat


def _gathered(share: tf.Tensor, group: tuple[int, int], keys: Sequence[int], hint: str) -> tf.Tensor:
    """All members' shares one after the other, flat; they travel in as many pieces as there are keys."""
    each, longer = divmod(share.shape[0], len(keys))
    sizes = [each + (k < longer) for k in range(len(keys))]
    pieces = [
        gathered(piece, group=group, key=key, hint=hint)
        for piece, size, key in zip(_split(share, sizes), sizes, keys, strict=True)
        if size
    ]
    if len(pieces) == 1:
        return pieces[0]
    rows = [tf.reshape(piece, [group[0], size]) for piece, size in zip(pieces, sizes, strict=False)]
    return tf.reshape(tf.concat(rows, axis=1), [-1])
