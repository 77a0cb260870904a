"""Connection to a Ray cluster that is there already, and how workers lie on its nodes."""

import dataclasses
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strategies.slices.tpu_slice import Accelerator

Placement = Literal["spread", "pack"]

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>\d{1,5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Hosts with TPUs whose chips are wired to each other.

    Attributes:
        topology: chips along each axis, such as 2x2x2.
    """

    accelerator: Accelerator
    topology: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """A Ray cluster and what a run may ask of it.

    Attributes:
        address: `host:port` of its server for clients; None for no cluster.
        token_file: holds the cluster's token; None for a cluster that asks for none.
        data_network: where workers reach each other, as CIDR; None leaves it to their routes.
        placement: whether each worker has a node of its own.
        slice: on whose hosts workers are, one on each; None takes any node that has what they need.
    """

    address: str | None = None
    token_file: Path | None = None
    data_network: str | None = None
    placement: Placement = "spread"
    slice: Slice | None = None


NO_CLUSTER = Connection()
CONNECTION_KEYS = tuple(item.name for item in dataclasses.fields(Connection))
"""What an experiment's `cluster` section may say of a connection."""


def is_address(text: str) -> bool:
    """Whether a text is `host:port`."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match["port"]) < 2**16


def is_network(text: str) -> bool:
    """Whether a text is a network of IPv4 as CIDR, such as 10.0.0.0/16."""
    try:
        ipaddress.IPv4Network(text)
    except ValueError:
        return False
    return "/" in text
