"""Generations of TPUs: shapes of slices, links between their chips, and where each figure is from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Accelerator: TypeAlias = Literal["v2", "v3", "v4", "v5p", "v5litepod", "v6e", "v7x"]
"""Generations, as Ray names them."""
Dims: TypeAlias = tuple[int, ...]
"""Chips along each axis."""
CUBE = 4
"""Chips along each axis of the smallest box that optical switches connect to others, and to itself."""

_CLOUD = "https://docs.cloud.google.com/tpu/docs"
_JOUPPI_2020 = "Jouppi et al. 2020, A domain-specific supercomputer for training, doi:10.1145/3360307"
_SMALLER_THAN_A_CUBE: tuple[Dims, ...] = ((1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_OF_256: tuple[Dims, ...] = ((4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_FROM_ONE: tuple[Dims, ...] = ((1, 1), (2, 2), (2, 4), (2, 8), *_OF_256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What is published of a generation.

    Attributes:
        in_documents: its name in Google's documentation, where that is another.
        devices_per_chip: two where each TensorCore is a device of its own; one where there is one, or where
            both are one device (megacore).
        link_bytes_per_s: of one link, one way.
        source: of that figure.
        shapes: chips along each axis, shortest first.
        most_chips: in boxes of whole cubes; None where there is no shape beside `shapes`.
        wrapped_length: of an axis whose two ends are linked, as in a whole pod; None where cubes decide.
    """

    in_documents: str | None = None
    devices_per_chip: int = 1
    link_bytes_per_s: float
    source: str
    shapes: tuple[Dims, ...]
    most_chips: int | None = None
    wrapped_length: int | None = None

    @property
    def n_axes(self) -> int:
        """Axes that chips are linked along."""
        return len(self.shapes[0])

    @property
    def links_per_chip(self) -> int:
        """Links that a chip has, one in each direction of each axis."""
        return 2 * self.n_axes

    def has_shape(self, dims: Sequence[int]) -> bool:
        """Whether slices come in this shape, in whatever order its axes are named."""
        is_box = self.most_chips is not None and len(dims) == self.n_axes and _is_of_cubes(dims)
        return tuple(sorted(dims)) in self.shapes or (is_box and math.prod(dims) <= (self.most_chips or 0))

    def wrapped(self, dims: Sequence[int]) -> tuple[bool, ...]:
        """Whether the two ends of each axis are linked."""
        if self.wrapped_length is None:
            return (_is_of_cubes(dims),) * len(dims)
        return tuple(length == self.wrapped_length for length in dims)


def _is_of_cubes(dims: Sequence[int]) -> bool:
    return all(length % CUBE == 0 for length in dims)


GENERATIONS: Mapping[Accelerator, Generation] = {
    "v2": Generation(
        devices_per_chip=2,
        link_bytes_per_s=496e9 / 8,
        source=_JOUPPI_2020,
        shapes=((2, 2), *_OF_256),
        wrapped_length=16,
    ),
    "v3": Generation(
        devices_per_chip=2,
        link_bytes_per_s=656e9 / 8,
        source=_JOUPPI_2020,
        shapes=((2, 2), *_OF_256, (16, 32), (32, 32)),
        wrapped_length=32,
    ),
    "v4": Generation(
        link_bytes_per_s=50e9,
        source="Jouppi et al. 2023, TPU v4: An Optically Reconfigurable Supercomputer, arXiv:2304.01433",
        shapes=_SMALLER_THAN_A_CUBE,
        most_chips=4096,
    ),
    # Both ways of all six links: 1200 GB/s, as of v7x.
    "v5p": Generation(
        link_bytes_per_s=1200e9 / 2 / 6,
        source=f"{_CLOUD}/v5p",
        shapes=_SMALLER_THAN_A_CUBE,
        most_chips=6144,
    ),
    "v5litepod": Generation(
        in_documents="v5e",
        link_bytes_per_s=400e9 / 2 / 4,
        source=f"{_CLOUD}/v5e",
        shapes=_FROM_ONE,
        wrapped_length=16,
    ),
    "v6e": Generation(
        link_bytes_per_s=800e9 / 2 / 4,
        source=f"{_CLOUD}/v6e",
        shapes=_FROM_ONE,
        wrapped_length=16,
    ),
    "v7x": Generation(
        in_documents="tpu7x",
        devices_per_chip=2,
        link_bytes_per_s=1200e9 / 2 / 6,
        source=f"{_CLOUD}/tpu7x",
        shapes=_SMALLER_THAN_A_CUBE,
        most_chips=9216,
    ),
}
