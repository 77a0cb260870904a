"""Reduce-scatter and all-gather of tensors whose parts belong to single members, by TensorFlow's collectives.

A bucket crosses as a matrix with a row for each member: its parts of all tensors, padded to the longest. The
number of operations grows with tensors, not with members, if parts of equal length have members in a row.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import tensorflow as tf

from strategies.numerics.collectives import apart, carried, gathered, joined, summed
from strategies.plan.sharding import (
    MOST_MEMBERS_OF_A_TASK,
    Layer,
    ShardedTensor,
    layer_widths,
    row_length,
    sums_wholes,
)


def reduce_scatter(
    *values: tf.Tensor,
    tensors: tuple[ShardedTensor, ...],
    counts: tuple[int, ...],
    rank: int,
    order: tuple[int, ...],
    group_key: int,
    keys: tuple[int, ...],
    whole_key: int,
    hint: str,
    most_local: int,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Sum over all members the parts that this member owns, and send the others theirs.

    TensorFlow runs an all-to-all only in a graph with another collective, such as the gather of new values.

    Args:
        values: consecutive ranges of each tensor, of one type.
        counts: number of ranges of each tensor.
        order: ranks of the members in the group's order.
        keys: one instance key per piece of the matrix; pieces are sent concurrently.
        whole_key: instance key for whole tensors that all members sum.
        hint: TensorFlow's implementation.
        most_local: largest number of members of one task.
    Returns:
        Sums of this member's parts, tensor by tensor, and an operation that runs after the exchange.
    """
    rest = iter(values)
    wholes = []
    for tensor, count in zip(tensors, counts, strict=True):
        ranges = list(itertools.islice(rest, count))
        wholes.append(ranges[0] if count == 1 else tf.concat(ranges, axis=tensor.axis))
    group, n = (len(order), group_key), len(order)
    in_rows = tuple(t for t in tensors if not (t.is_whole and sums_wholes(tensors, n)))
    values_in_rows = [v for v, t in zip(wholes, tensors, strict=True) if t in in_rows]
    others = [(v, t) for v, t in zip(wholes, tensors, strict=True) if t not in in_rows]
    exchanged: list[tf.Tensor] = []
    own_in_rows: Iterator[tf.Tensor] = iter(())
    own_others: Iterator[tf.Tensor] = iter(())
    if in_rows:
        matrix = _matrix(values_in_rows, in_rows, n)
        matrix = matrix if order == tuple(range(n)) else tf.gather(matrix, order)
        exchanged += [
            _own_sum(piece, group, key, hint, order.index(rank), most_local)
            for piece, key in zip(_pieces_of(matrix, len(keys), axis=1), keys, strict=True)
        ]
        row = exchanged[0] if len(exchanged) == 1 else tf.concat(exchanged, axis=0)
        own_in_rows = _parts_of(row, in_rows, rank)
    if others:
        total = summed(joined(*(v for v, _ in others)), group=group, key=whole_key, hint=hint)
        exchanged.append(total)
        sums = zip(apart(total, shapes=[t.dims for _, t in others]), others, strict=True)
        own_others = (value for value, (_, t) in sums if t.owners[0] == rank)
    own = [
        next(own_in_rows if t in in_rows else own_others)
        for t in tensors
        for _ in range(t.owners.count(rank))
    ]
    return own, tf.group(*exchanged)


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
    row = _row(own, tensors, rank, tf.as_dtype(dtype))
    n = len(order)
    pieces = [
        tf.reshape(gathered(piece, group=(n, group_key), key=key, hint=hint), [n, piece.shape[0]])
        for piece, key in zip(_pieces_of(row, len(keys), axis=0), keys, strict=True)
    ]
    matrix = pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=1)
    after = tf.group(matrix)
    if order != tuple(range(n)):
        matrix = tf.gather(matrix, [order.index(member) for member in range(n)])
    results: list[tf.Tensor] = []
    for tensor, whole, wanted in zip(tensors, _wholes(matrix, tensors), ranges, strict=True):
        results += _ranges_of(whole, tensor, wanted)
    return results, after


def _pieces_of(value: tf.Tensor, n: int, *, axis: int) -> list[tf.Tensor]:
    share, longer = divmod(value.shape[axis], n)
    return _split(value, [share + (k < longer) for k in range(n)], axis)


def _matrix(values: Sequence[tf.Tensor], tensors: Sequence[ShardedTensor], n: int) -> tf.Tensor:
    """Rows of all members, [n, row length]."""
    columns = [
        _column(value, tensor, layer, n)
        for value, tensor in zip(values, tensors, strict=True)
        if not tensor.is_whole
        for layer in tensor.layers
    ]
    wholes = [pair for pair in zip(values, tensors, strict=True) if pair[1].is_whole]
    if wholes:
        columns.append(_packed(wholes, n))
    return columns[0] if len(columns) == 1 else tf.concat(columns, axis=1)


def _column(value: tf.Tensor, tensor: ShardedTensor, layer: Layer, n: int) -> tf.Tensor:
    """Each member's part of one layer, zeros for members without one: [n, width]."""
    outer, inner, width = tensor.outer, tensor.inner, layer.width
    block = tf.reshape(value, [outer, -1, inner])
    rows: list[tf.Tensor] = []
    n_rows = 0
    for run in layer.runs:
        rows += _zero_rows(run.rank - n_rows, outer * width * inner, value.dtype)
        parts = block if run.stop - run.start == block.shape[1] else block[:, run.start : run.stop]
        parts = tf.reshape(parts, [outer, run.count, run.size, inner])
        if run.size < width:
            parts = tf.pad(parts, [[0, 0], [0, 0], [0, width - run.size], [0, 0]])
        if outer > 1:
            parts = tf.transpose(parts, [1, 0, 2, 3])
        rows.append(tf.reshape(parts, [run.count, -1]))
        n_rows = run.rank + run.count
    rows += _zero_rows(n - n_rows, outer * width * inner, value.dtype)
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0)


def _zero_rows(n: int, width: int, dtype: tf.DType) -> list[tf.Tensor]:
    return [tf.zeros([n, width], dtype)] if n else []


def _packed(wholes: Sequence[tuple[tf.Tensor, ShardedTensor]], n: int) -> tf.Tensor:
    """Each member's whole tensors one behind the other, padded to the longest row."""
    length = row_length([tensor for _, tensor in wholes])
    pieces: list[tf.Tensor] = []
    end = 0
    for place, start in _places([tensor for _, tensor in wholes], length):
        value, tensor = wholes[place]
        if start > end:
            pieces.append(tf.zeros([start - end], value.dtype))
        pieces.append(tf.reshape(value, [-1]))
        end = start + math.prod(tensor.dims)
    if end < n * length:
        pieces.append(tf.zeros([n * length - end], pieces[0].dtype))
    return tf.reshape(pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=0), [n, length])


def _places(wholes: Sequence[ShardedTensor], length: int) -> Iterator[tuple[int, int]]:
    """Whole tensors by the rank of their owner, each with its start in the flat rows of this length."""
    end: dict[int, int] = {}
    for place in sorted(range(len(wholes)), key=lambda k: wholes[k].owners[0]):
        owner = wholes[place].owners[0]
        start = end.get(owner, owner * length)
        end[owner] = start + math.prod(wholes[place].dims)
        yield place, start


def _row(own: Sequence[tf.Tensor], tensors: Sequence[ShardedTensor], rank: int, dtype: tf.DType) -> tf.Tensor:
    """This member's row."""
    parts = iter(own)
    columns: list[tf.Tensor] = []
    wholes: list[tf.Tensor] = []
    for tensor in tensors:
        if tensor.is_whole:
            wholes += [next(parts)] if tensor.owners[0] == rank else []
            continue
        for layer in tensor.layers:
            column = tf.zeros([tensor.outer * layer.width * tensor.inner], dtype)
            if rank in layer.owners:
                part = tf.reshape(next(parts), [tensor.outer, -1, tensor.inner])
                missing = layer.width - part.shape[1]
                column = tf.reshape(tf.pad(part, [[0, 0], [0, missing], [0, 0]]) if missing else part, [-1])
            columns.append(column)
    if wholes:
        columns.append(joined(*wholes))
    length, present = row_length(tensors), sum(column.shape[0] for column in columns)
    if present < length:
        columns.append(tf.zeros([length - present], dtype))
    return columns[0] if len(columns) == 1 else tf.concat(columns, axis=0)


def _parts_of(row: tf.Tensor, tensors: Sequence[ShardedTensor], rank: int) -> Iterator[tf.Tensor]:
    """Parts that a member owns, from its row."""
    sizes = [width for tensor in tensors if not tensor.is_whole for width in layer_widths(tensor)]
    own = [math.prod(t.dims) for t in tensors if t.is_whole and t.owners[0] == rank]
    rest = row.shape[0] - sum(sizes) - sum(own)
    pieces = iter(_split(row, [*sizes, *own, *([rest] if rest else [])]))
    columns = [next(pieces) for _ in sizes]
    columns_left, wholes_left = iter(columns), pieces
    for tensor in tensors:
        if tensor.is_whole:
            if tensor.owners[0] == rank:
                yield tf.reshape(next(wholes_left), tensor.dims)
            continue
        for layer in tensor.layers:
            column = next(columns_left)
            if rank not in layer.owners:
                continue
            size = layer.sizes[layer.owners.index(rank)]
            part = tf.reshape(column, [tensor.outer, layer.width, tensor.inner])
            yield tf.reshape(part[:, :size] if size < layer.width else part, tensor.dims_of(size))


def _wholes(matrix: tf.Tensor, tensors: Sequence[ShardedTensor]) -> Iterator[tf.Tensor]:
    """Values of tensors in order, from all members' rows; their shapes are still to be set."""
    widths = [width for tensor in tensors if not tensor.is_whole for width in layer_widths(tensor)]
    wholes = [tensor for tensor in tensors if tensor.is_whole]
    length = matrix.shape[1] - sum(widths)
    columns = iter(_split(matrix, [*widths, *([length] if wholes else [])], axis=1))
    parted = [[next(columns) for _ in tensor.layers] for tensor in tensors if not tensor.is_whole]
    parted_left = iter(parted)
    unpacked = iter(_unpacked(next(columns), wholes, length) if wholes else ())
    for tensor in tensors:
        if tensor.is_whole:
            yield next(unpacked)
        else:
            ranges = [
                part
                for layer, column in zip(tensor.layers, next(parted_left), strict=True)
                for part in _runs_of(column, tensor, layer)
            ]
            if len(ranges) > 1:
                ranges = [tf.reshape(part, [tensor.outer, -1, tensor.inner]) for part in ranges]
            yield ranges[0] if len(ranges) == 1 else tf.concat(ranges, axis=1)


def _runs_of(column: tf.Tensor, tensor: ShardedTensor, layer: Layer) -> Iterator[tf.Tensor]:
    """Parts of each run of a layer, [outer, number of parts, size, inner]."""
    outer, inner, width = tensor.outer, tensor.inner, layer.width
    for run in layer.runs:
        rows = column[run.rank : run.rank + run.count] if run.count < column.shape[0] else column
        parts = tf.reshape(rows, [run.count, outer, width, inner])
        if run.size < width:
            parts = parts[:, :, : run.size]
        yield tf.transpose(parts, [1, 0, 2, 3]) if outer > 1 else parts


def _unpacked(column: tf.Tensor, wholes: Sequence[ShardedTensor], length: int) -> list[tf.Tensor]:
    sizes: list[int] = []
    order: list[int | None] = []
    end = 0
    n_elements = column.shape[0] * length
    for place, start in _places(wholes, length):
        if start > end:
            sizes.append(start - end)
            order.append(None)
        sizes.append(math.prod(wholes[place].dims))
        order.append(place)
        end = start + sizes[-1]
    if end < n_elements:
        sizes.append(n_elements - end)
        order.append(None)
    pieces = _split(tf.reshape(column, [-1]), sizes)
    piece_of = {place: piece for place, piece in zip(order, pieces, strict=True) if place is not None}
    return [piece_of[place] for place in range(len(wholes))]


def _ranges_of(
    whole: tf.Tensor, tensor: ShardedTensor, wanted: Sequence[tuple[int, int]]
) -> Iterator[tf.Tensor]:
    length = sum(tensor.sizes)
    along = None
    for start, stop in wanted:
        if stop - start == length:
            yield tf.reshape(whole, tensor.dims)
            continue
        along = tf.reshape(whole, [tensor.outer, length, tensor.inner]) if along is None else along
        yield tf.reshape(along[:, start:stop], tensor.dims_of(stop - start))


def _split(value: tf.Tensor, sizes: Sequence[int], axis: int = 0) -> list[tf.Tensor]:
    return [value] if len(sizes) == 1 else tf.split(value, list(sizes), axis=axis)
