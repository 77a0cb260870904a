"""A TPU slice by its name, such as v4:2x2x2: chips, how they are linked, and devices that replicas run on."""

import re
from dataclasses import dataclass

from strategies.errors import StrategyError, suggestion
from strategies.slices.generations import CUBE, GENERATIONS, Accelerator, Generation
from strategies.slices.torus import Torus

_NAME = re.compile(r"(?P<accelerator>\w+):(?P<topology>[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlice:
    """A slice that there is.

    Attributes:
        topology: chips along each axis, such as 2x2x2.
    """

    accelerator: Accelerator
    topology: str

    @property
    def generation(self) -> Generation:
        """What is published of its generation."""
        return GENERATIONS[self.accelerator]

    @property
    def torus(self) -> Torus:
        """Its chips and their links."""
        dims = _dims(self.topology)
        return Torus(
            dims=dims,
            wrapped=self.generation.wrapped(dims),
            link_bytes_per_s=self.generation.link_bytes_per_s,
        )

    @property
    def n_devices(self) -> int:
        """Devices in all, each of which one replica runs on."""
        return self.torus.n_chips * self.generation.devices_per_chip

    def require_replicas(self, n_replicas: int) -> None:
        """Look whether there is one replica for each device.

        Raises:
            StrategyError: there are more or fewer.
        """
        if n_replicas != self.n_devices:
            raise StrategyError(
                f"must have a device for each replica, got {self.n_devices} of {self.accelerator}:"
                f"{self.topology} for {n_replicas}; give --workers and --replicas whose product is "
                f"{self.n_devices}, or another slice"
            )


def parse_slice(text: str) -> TpuSlice:
    """Read a slice's name, ACCELERATOR:TOPOLOGY, the first as Ray or as Google's documentation has it.

    Raises:
        StrategyError: it is none, its generation is not known, or it does not come in this shape.
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
    """The shapes that its slices come in, as names."""
    # Google's own name of the one with an axis of one chip has that axis last.
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
