"""Shares of transfers, for tests."""

from strategies.ir.train_graph import Transfer


def shares_of(transfer: Transfer) -> tuple[int, ...]:
    """Elements of each worker's share, as far as the last worker that has any."""
    tasks = [task for block in transfer.blocks for task in block.tasks]
    lengths = [0] * (1 + max(tasks, default=-1))
    for block in transfer.blocks:
        for size, task in zip(block.sizes, block.tasks, strict=True):
            lengths[task] += block.outer * size * block.inner
    return tuple(lengths)
