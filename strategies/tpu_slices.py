"""TPU slices by name, such as v4:2x2x2: published shapes, chips and links, each with its source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from strategies.errors import StrategyError, suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """Chips along axes, some of which wrap around.

    Attributes:
        dims: number of chips along each axis.
        wrapped: True for each axis whose ends are linked.
        link_bytes_per_s: b, bandwidth of one link in one direction.
    """

    dims: tuple[int, ...]
    wrapped: tuple[bool, ...]
    link_bytes_per_s: float

    @property
    def n_chips(self) -> int:
        return math.prod(self.dims)

    @property
    def links_in_use(self) -> int:
        """Smallest number of links of a chip, C."""
        return sum(1 + wraps for length, wraps in self._axes if length > 1)

    @property
    def chip_bytes_per_s(self) -> float:
        """Bandwidth of all links in use of the chip that has the fewest, in one direction: C·b.

        A reduce-scatter or an all-gather with parts of suitable sizes, one for each order of the axes, keeps
        all of them busy.
        """
        return self.links_in_use * self.link_bytes_per_s

    @property
    def _axes(self) -> tuple[tuple[int, bool], ...]:
        return tuple(zip(self.dims, self.wrapped, strict=True))


Accelerator: TypeAlias = Literal["v2", "v3", "v4", "v5p", "v5litepod", "v6e", "v7x"]
"""Generations, as Ray names them."""
Dims: TypeAlias = tuple[int, ...]
"""Chips along each axis."""
CUBE = 4
"""Axis length of the smallest box that optical switches connect to others, and to itself."""

_CLOUD = "https://docs.cloud.google.com/tpu/docs"
_JOUPPI_2020 = "Jouppi et al. 2020, A domain-specific supercomputer for training, doi:10.1145/3360307"
_SMALLER_THAN_A_CUBE: tuple[Dims, ...] = ((1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_OF_256: tuple[Dims, ...] = ((4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_FROM_ONE: tuple[Dims, ...] = ((1, 1), (2, 2), (2, 4), (2, 8), *_OF_256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Published facts of a TPU generation.

    Attributes:
        in_documents: name in Google's documentation, if it differs.
        devices_per_chip: 2 if each TensorCore is a device, else 1.
        link_bytes_per_s: bandwidth of one link in one direction.
        source: source of `link_bytes_per_s`.
        shapes: supported shapes: number of chips along each axis, shortest axis first.
        most_chips: maximum number of chips of a box of whole cubes; None if only `shapes` are supported.
        wrapped_length: length of an axis whose ends are linked, that of a whole pod; None if cubes decide.
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
        return len(self.shapes[0])

    @property
    def links_per_chip(self) -> int:
        return 2 * self.n_axes

    def has_shape(self, dims: Sequence[int]) -> bool:
        """True if slices have this shape, in any order of axes."""
        is_box = self.most_chips is not None and len(dims) == self.n_axes and _is_of_cubes(dims)
        return tuple(sorted(dims)) in self.shapes or (is_box and math.prod(dims) <= (self.most_chips or 0))

    def wrapped(self, dims: Sequence[int]) -> tuple[bool, ...]:
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
    # Both directions of all six links: 1200 GB/s, as for v7x.
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


_NAME = re.compile(r"(?P<accelerator>\w+):(?P<topology>[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlice:
    """A slice of a known generation and shape."""

    accelerator: Accelerator
    topology: str

    @property
    def generation(self) -> Generation:
        return GENERATIONS[self.accelerator]

    @property
    def torus(self) -> Torus:
        dims = _dims(self.topology)
        return Torus(
            dims=dims,
            wrapped=self.generation.wrapped(dims),
            link_bytes_per_s=self.generation.link_bytes_per_s,
        )

    @property
    def n_devices(self) -> int:
        return self.torus.n_chips * self.generation.devices_per_chip

    def require_replicas(self, n_replicas: int) -> None:
        """Check that the slice has one device per replica.

        Raises:
            StrategyError: it has more or fewer.
        """
        if n_replicas != self.n_devices:
            raise StrategyError(
                f"must have a device for each replica, got {self.n_devices} of {self.accelerator}:"
                f"{self.topology} for {n_replicas}; give --workers and --replicas whose product is "
                f"{self.n_devices}, or another slice"
            )


def parse_slice(text: str) -> TpuSlice:
    """Read ACCELERATOR:TOPOLOGY; the accelerator's name is Ray's or that of Google's documentation.

    Raises:
        StrategyError: the text is not a slice, the generation is unknown, or it does not have the shape.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise StrategyError(
            "must be ACCELERATOR:TOPOLOGY, a generation and its chips along each axis, got "
            f"{text[:80]!r}; write it as v4:2x2x2 or v5e:4x4"
        )
    accelerator = _accelerator(match["accelerator"])
    topology = match["topology"]
    generation = GENERATIONS[accelerator]
    if not generation.has_shape(_dims(topology)):
        raise StrategyError(
            f"must have a shape that {match['accelerator']} comes in, got {topology}; use "
            f"{_shapes(generation)}"
        )
    return TpuSlice(accelerator=accelerator, topology=topology)


def _accelerator(name: str) -> Accelerator:
    names: dict[str, Accelerator] = {}
    for accelerator, generation in GENERATIONS.items():
        names[accelerator] = names[generation.in_documents or accelerator] = accelerator
    if name not in names:
        raise StrategyError(f"generation {name!r} is not known; {suggestion(name, names)}")
    return names[name]


def _dims(topology: str) -> tuple[int, ...]:
    return tuple(map(int, topology.split("x")))


def _shapes(generation: Generation) -> str:
    # In Google's own name, an axis of one chip comes last.
    named = [
        "x".join(map(str, (*(d for d in dims if d > 1), *(d for d in dims if d == 1))))
        for dims in generation.shapes
    ]
    if generation.most_chips is None:
        return " or ".join((", ".join(named[:-1]), named[-1]))
    return (
        f"{', '.join(named)}, or multiples of {CUBE} along each of {generation.n_axes} axes, at most "
        f"{generation.most_chips} chips"
    )
