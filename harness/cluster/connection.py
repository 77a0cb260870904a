"""Connection to a Ray cluster that is there already, and how workers lie on its nodes."""

import ipaddress
import re
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from harness.sections import AbsolutePath, Section
from strategies.slices.tpu_slice import Accelerator

Placement = Literal["spread", "pack"]

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>\d{1,5})")
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")


def _address(value: object) -> object:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise PydanticCustomError(
            "address", "must be host:port of Ray's server for clients, such as head:10001"
        )
    return value


def _network(value: object) -> object:
    if isinstance(value, str) and "/" in value:
        with suppress(ValueError):
            ipaddress.IPv4Network(value)
            return value
    raise PydanticCustomError("network", "must be a network of IPv4 as CIDR, such as 10.0.0.0/16")


def _topology(value: object) -> object:
    if not (isinstance(value, str) and _TOPOLOGY.fullmatch(value)):
        raise PydanticCustomError("topology", "must be chips along each axis, such as 2x2x2 or 4x4")
    return value


class Slice(Section):
    """A TPU slice: hosts whose chips are wired to each other, with a worker on each host.

    Attributes:
        topology: chips along each axis, such as 2x2x2.
    """

    accelerator: Accelerator
    topology: Annotated[str, BeforeValidator(_topology)]


class Connection(Section):
    """A Ray cluster and what a run may ask of it.

    Attributes:
        address: `host:port` of its server for clients; None for no cluster.
        token_file: holds the cluster's token; None for a cluster that asks for none.
        data_network: where workers reach each other, as CIDR; None leaves it to their routes.
        placement: whether each worker has a node of its own.
        slice: on whose hosts workers are; None takes any node that has what they need.
    """

    address: Annotated[str, BeforeValidator(_address)] | None = None
    token_file: AbsolutePath | None = None
    data_network: Annotated[str, BeforeValidator(_network)] | None = None
    placement: Placement = "spread"
    slice: Slice | None = None


NO_CLUSTER = Connection()
