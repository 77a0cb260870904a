"""Groups of values of at most so many bytes, for what one call may carry."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

# One message between servers ends at 2 GB, and what is under way is held twice.
RUN_BYTES = 256 << 20


def byte_groups(
    items: Iterable[Item], n_bytes: Callable[[Item], int], *, limit: int = RUN_BYTES
) -> Iterator[list[Item]]:
    """Items in their order, in groups of at most `limit` bytes; one that alone is larger is a group.

    Items are taken when their group needs them, so that no more than one group is held at a time.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = n_bytes(item)
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
