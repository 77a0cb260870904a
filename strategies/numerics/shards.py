"""Reduce-scatter and all-gather of tensors whose parts belong to single members, by TensorFlow's collectives.

A bucket crosses as a matrix with a row for each member, see `plan.sharding`. The number of operations grows
with tensors, not with members, if parts of equal length have members in a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import tensorflow as tf

from strategies.numerics.collectives import (
    bucket_all_reduce,
    carried,
    gathered,
    joined,
    piece_sizes,
    places_by_rank,
    summed,
)
from strategies.plan.sharding import (
    MOST_MEMBERS_OF_A_TASK,
    ShardedTensor,
    exchange_of,
    in_row_order,
    row_length,
)


def reduce_scatter(
    *values: tf.Tensor,
    tensors: tuple[ShardedTensor, ...],
    counts: tuple[int, ...],
    rank: int,
    order: tuple[int, ...],
    group_key: int,
    row_keys: tuple[int, ...],
    sum_keys: tuple[int, ...],
    hint: str,
    most_local: int,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Sum over all members the parts that this member owns, and send the others theirs.

    TensorFlow runs an all-to-all only in a graph with another collective, such as the gather of new values.

    Args:
        values: consecutive ranges of each tensor, of one type.
        counts: number of ranges of each tensor.
        order: ranks of the members in the group's order.
        row_keys: one instance key per piece of the rows; pieces are sent concurrently.
        sum_keys: one instance key per piece of the tensors that all members sum, see `exchange_of`.
        hint: TensorFlow's implementation.
        most_local: largest number of members of one task.
    Returns:
        Sums of this member's parts, tensor by tensor, and an operation that runs after the exchange.
    """
    ranges = _grouped(values, counts)
    wholes = [_concat(own, tensor.axis) for own, tensor in zip(ranges, tensors, strict=True)]
    group = (len(order), group_key)
    in_rows, in_sums = exchange_of(tensors, len(order))
    parts: dict[int, list[tf.Tensor]] = {}
    exchanged: list[tf.Tensor] = []
    if in_rows:
        chosen = [tensors[place] for place in in_rows]
        matrix = _matrix([wholes[place] for place in in_rows], chosen, len(order))
        matrix = matrix if order == tuple(range(len(order))) else tf.gather(matrix, order)
        exchanged += [
            _own_sum(piece, group, key, hint, order.index(rank), most_local)
            for piece, key in zip(_pieces(matrix, len(row_keys), axis=1), row_keys, strict=True)
        ]
        row = _concat(exchanged, 0)
        parts |= zip(in_rows, _parts_of_row(row, chosen, rank, len(order)), strict=True)
    if in_sums:
        shapes = tuple(tensors[place].dims for place in in_sums)
        sums = bucket_all_reduce(
            *(wholes[place] for place in in_sums), shapes=shapes, group=group, keys=sum_keys, hint=hint
        )
        exchanged += sums
        parts |= {
            place: [
                part
                for part, owner in zip(_parts(total, tensors[place]), tensors[place].owners, strict=True)
                if owner == rank
            ]
            for place, total in zip(in_sums, sums, strict=True)
        }
    return [part for place in range(len(tensors)) for part in parts[place]], tf.group(*exchanged)


def _own_sum(
    matrix: tf.Tensor, group: tuple[int, int], key: int, hint: str, place: int, most_local: int
) -> tf.Tensor:
    """Sum of all members' rows for the member at this place of the group."""
    if most_local > MOST_MEMBERS_OF_A_TASK:
        return summed(matrix, group=group, key=key, hint=hint)[place]

    def to_all(rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveAllToAllV2(
            input=rows,
            group_size=group[0],
            group_key=group[1],
            instance_key=key,
            ordering_token=[],
            communication_hint=hint,
        )

    return tf.reduce_sum(carried(matrix, to_all, adds=False), axis=0)


def all_gather(
    *own: tf.Tensor,
    tensors: tuple[ShardedTensor, ...],
    ranges: tuple[tuple[tuple[int, int], ...], ...],
    rank: int,
    order: tuple[int, ...],
    group_key: int,
    keys: tuple[int, ...],
    dtype: int,
    hint: str,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Gather every member's parts on all members.

    Args:
        own: parts that this member owns, tensor by tensor.
        ranges: wanted ranges of each tensor along its axis, `(start, stop)`.
        order: ranks of the members in the group's order.
        keys: one instance key per piece of a row; pieces are sent concurrently.
        dtype: TensorFlow's number of the tensors' type.
        hint: TensorFlow's implementation.
    Returns:
        Wanted ranges, tensor by tensor, and an operation that runs after the exchange.
    """
    n = len(order)
    parts = _grouped(own, [tensor.owners.count(rank) for tensor in tensors])
    in_rows = in_row_order(tensors, n)
    chosen = [tensors[place] for place in in_rows]
    row = _row([parts[place] for place in in_rows], chosen, n, tf.as_dtype(dtype))
    pieces = [
        tf.reshape(gathered(piece, group=(n, group_key), key=key, hint=hint), [n, piece.shape[0]])
        for piece, key in zip(_pieces(row, len(keys), axis=0), keys, strict=True)
    ]
    matrix = _concat(pieces, 1)
    after = tf.group(matrix)
    if order != tuple(range(n)):
        matrix = tf.gather(matrix, places_by_rank(order))
    wholes = dict(zip(in_rows, _wholes(matrix, chosen), strict=True))
    results = [
        _range(wholes[place], tensor, start, stop)
        for place, (tensor, bounds) in enumerate(zip(tensors, ranges, strict=True))
        for start, stop in bounds
    ]
    return results, after


def _matrix(values: Sequence[tf.Tensor], tensors: Sequence[ShardedTensor], n: int) -> tf.Tensor:
    """Rows of n members, [n, row length].

    Args:
        tensors: tensors in the rows' order.
    """
    n_columns = _n_columns(tensors, n)
    columns = [_column(*pair, n) for pair in zip(values[:n_columns], tensors[:n_columns], strict=True)]
    if n_columns < len(tensors):
        columns.append(_packed(values[n_columns:], tensors[n_columns:], n))
    return _concat(columns, 1)


def _n_columns(tensors: Sequence[ShardedTensor], n: int) -> int:
    return sum(tensor.is_in_columns(n) for tensor in tensors)


def _column(value: tf.Tensor, tensor: ShardedTensor, n: int) -> tf.Tensor:
    """Each member's part of a tensor, zeros for members without one: [n, width]."""
    outer, inner, size = tensor.outer, tensor.inner, max(tensor.sizes)
    rows: list[tf.Tensor] = []
    n_rows = 0
    for run in tensor.runs:
        rows += _zero_rows(run.rank - n_rows, tensor.width, value.dtype)
        parts = _range(value, tensor, run.start, run.stop, [outer, run.count, run.size, inner])
        if run.size < size:
            parts = tf.pad(parts, [[0, 0], [0, 0], [0, size - run.size], [0, 0]])
        if outer > 1:
            parts = tf.transpose(parts, [1, 0, 2, 3])
        rows.append(tf.reshape(parts, [run.count, -1]))
        n_rows = run.rank + run.count
    rows += _zero_rows(n - n_rows, tensor.width, value.dtype)
    return _concat(rows, 0)


def _zero_rows(n: int, width: int, dtype: tf.DType) -> list[tf.Tensor]:
    return [tf.zeros([n, width], dtype)] if n else []


def _packed(values: Sequence[tf.Tensor], tensors: Sequence[ShardedTensor], n: int) -> tf.Tensor:
    """Each member's parts one behind the other, padded to the longest share: [n, longest share]."""
    length = row_length(tensors, n)
    parts = [part for value, tensor in zip(values, tensors, strict=True) for part in _parts(value, tensor)]
    pieces = [
        tf.zeros([size], values[0].dtype) if place is None else tf.reshape(parts[place], [-1])
        for place, size in _packed_pieces(tensors, length, n)
    ]
    return tf.reshape(_concat(pieces, 0), [n, length])


def _packed_pieces(tensors: Sequence[ShardedTensor], length: int, n: int) -> Iterator[tuple[int | None, int]]:
    """Place among all tensors' parts, None for zeros, and number of elements of each piece of n packed rows.

    Args:
        length: number of elements of a row.
    """
    sizes = [tensor.outer * size * tensor.inner for tensor in tensors for size in tensor.sizes]
    owners = [owner for tensor in tensors for owner in tensor.owners]
    end = 0
    for place in sorted(range(len(owners)), key=owners.__getitem__):
        start = max(end, owners[place] * length)
        if start > end:
            yield None, start - end
        yield place, sizes[place]
        end = start + sizes[place]
    if end < n * length:
        yield None, n * length - end


def _row(
    parts: Sequence[Sequence[tf.Tensor]],
    tensors: Sequence[ShardedTensor],
    n: int,
    dtype: tf.DType,
) -> tf.Tensor:
    """This member's row.

    Args:
        parts: this member's parts of each tensor. tensors: tensors in the rows' order.
    """
    n_columns = _n_columns(tensors, n)
    pieces = [_padded(*pair, dtype) for pair in zip(parts[:n_columns], tensors[:n_columns], strict=True)]
    packed = [part for own in parts[n_columns:] for part in own]
    if packed:
        pieces.append(joined(*packed))
    missing = row_length(tensors, n) - sum(piece.shape[0] for piece in pieces)
    if missing:
        pieces.append(tf.zeros([missing], dtype))
    return _concat(pieces, 0)


def _padded(parts: Sequence[tf.Tensor], tensor: ShardedTensor, dtype: tf.DType) -> tf.Tensor:
    """Flat part of a tensor in columns, zeros for a member without one: [width]."""
    if not parts:
        return tf.zeros([tensor.width], dtype)
    part = tf.reshape(parts[0], [tensor.outer, -1, tensor.inner])
    missing = max(tensor.sizes) - part.shape[1]
    return tf.reshape(tf.pad(part, [[0, 0], [0, missing], [0, 0]]) if missing else part, [-1])


def _parts_of_row(
    row: tf.Tensor, tensors: Sequence[ShardedTensor], rank: int, n: int
) -> Iterator[list[tf.Tensor]]:
    """Parts that a member owns of each tensor, from its row.

    Args:
        tensors: tensors in the rows' order.
    """
    n_columns = _n_columns(tensors, n)
    own_sizes = [
        [size for size, owner in zip(tensor.sizes, tensor.owners, strict=True) if owner == rank]
        for tensor in tensors
    ]
    lengths = [tensor.width for tensor in tensors[:n_columns]]
    lengths += [
        tensor.outer * size * tensor.inner
        for tensor, sizes in zip(tensors[n_columns:], own_sizes[n_columns:], strict=True)
        for size in sizes
    ]
    padding = row.shape[0] - sum(lengths)
    pieces = iter(_split(row, [*lengths, padding] if padding else lengths))
    for place, (tensor, sizes) in enumerate(zip(tensors, own_sizes, strict=True)):
        if place >= n_columns:
            yield [tf.reshape(next(pieces), tensor.dims_of(size)) for size in sizes]
            continue
        column = tf.reshape(next(pieces), [tensor.outer, -1, tensor.inner])
        yield [
            tf.reshape(column[:, :size] if size < column.shape[1] else column, tensor.dims_of(size))
            for size in sizes
        ]


def _wholes(matrix: tf.Tensor, tensors: Sequence[ShardedTensor]) -> list[tf.Tensor]:
    """Values of tensors from all members' rows; their shapes are still to be set.

    Args:
        tensors: tensors in the rows' order.
    """
    n_columns = _n_columns(tensors, matrix.shape[0])
    widths = [tensor.width for tensor in tensors[:n_columns]]
    length = matrix.shape[1] - sum(widths)
    columns = _split(matrix, [*widths, length] if n_columns < len(tensors) else widths, axis=1)
    values = [_of_column(*pair) for pair in zip(columns, tensors[:n_columns], strict=False)]
    if n_columns < len(tensors):
        values += _unpacked(columns[-1], tensors[n_columns:])
    return values


def _of_column(column: tf.Tensor, tensor: ShardedTensor) -> tf.Tensor:
    """Values of a tensor in columns."""
    outer, inner, size = tensor.outer, tensor.inner, max(tensor.sizes)
    runs: list[tf.Tensor] = []
    for run in tensor.runs:
        rows = column[run.rank : run.rank + run.count] if run.count < column.shape[0] else column
        parts = tf.reshape(rows, [run.count, outer, size, inner])
        if run.size < size:
            parts = parts[:, :, : run.size]
        runs.append(tf.transpose(parts, [1, 0, 2, 3]) if outer > 1 else parts)
    return _along_axis(runs, tensor)


def _unpacked(column: tf.Tensor, tensors: Sequence[ShardedTensor]) -> list[tf.Tensor]:
    """Values of tensors whose parts are packed."""
    n, length = column.shape
    places, sizes = zip(*_packed_pieces(tensors, length, n), strict=True)
    pieces = dict(zip(places, _split(tf.reshape(column, [-1]), sizes), strict=True))
    counts = [len(tensor.sizes) for tensor in tensors]
    parts = _grouped((pieces[place] for place in range(sum(counts))), counts)
    return [_along_axis(*pair) for pair in zip(parts, tensors, strict=True)]


def _along_axis(parts: Sequence[tf.Tensor], tensor: ShardedTensor) -> tf.Tensor:
    """Parts of any shape, one after the other along a tensor's axis."""
    if len(parts) == 1:
        return parts[0]
    return tf.concat([tf.reshape(part, [tensor.outer, -1, tensor.inner]) for part in parts], axis=1)


def _parts(value: tf.Tensor, tensor: ShardedTensor) -> list[tf.Tensor]:
    return _split(value, tensor.sizes, tensor.axis)


def _range(
    value: tf.Tensor, tensor: ShardedTensor, start: int, stop: int, dims: Sequence[int] | None = None
) -> tf.Tensor:
    """Range of a tensor along its axis, in these dims; by default in its own."""
    if stop - start < tensor.length:
        if tensor.outer == 1:  # slices of the first axis are not copied
            value = tf.reshape(value, [tensor.length, tensor.inner])[start:stop]
        else:
            value = tf.reshape(value, [tensor.outer, tensor.length, tensor.inner])[:, start:stop]
    return tf.reshape(value, tensor.dims_of(stop - start) if dims is None else dims)


def _pieces(value: tf.Tensor, n: int, *, axis: int) -> list[tf.Tensor]:
    return _split(value, piece_sizes(value.shape[axis], n), axis)


def _split(value: tf.Tensor, sizes: Sequence[int], axis: int = 0) -> list[tf.Tensor]:
    return [value] if len(sizes) == 1 else tf.split(value, list(sizes), axis=axis)


def _concat(values: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat(list(values), axis=axis)


def _grouped(values: Iterable[tf.Tensor], counts: Iterable[int]) -> list[list[tf.Tensor]]:
    """Values in groups of these lengths."""
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]
