"""How a Ray cluster that is there already is reached, and how workers lie on its nodes."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Placement = Literal["spread", "pack"]

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>\d{1,5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """A Ray cluster and what a run may ask of it.

    Attributes:
        address: `host:port` of its server for clients; None for no cluster.
        token_file: holds the cluster's token; None for a cluster that asks for none.
        data_network: where workers reach each other, as CIDR; None leaves it to their routes.
        placement: whether each worker has a node of its own.
    """

    address: str | None = None
    token_file: Path | None = None
    data_network: str | None = None
    placement: Placement = "spread"


NO_CLUSTER = Connection()


def is_address(text: str) -> bool:
    """Whether a text is `host:port`."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found["port"]) < 2**16


def is_network(text: str) -> bool:
    """Whether a text is a network of IPv4 as CIDR, such as 10.0.0.0/16."""
    try:
        ipaddress.IPv4Network(text)
    except ValueError:
        return False
    return "/" in text
