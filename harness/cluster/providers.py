"""Every provider of workers: its name, what it is, and what its workers can have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Device: TypeAlias = Literal["cpu", "gpu", "tpu", "tpu-emulated"]
"""What a case's replicas run on, as records say it."""
Hardware: TypeAlias = Literal["cpu", "gpu", "tpu"]
"""What that takes of a host: emulated cores are devices of its processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderTraits:
    """One row of the table.

    Attributes:
        devices: kinds of device that its workers can have.
        shapes_links: whether it can limit the rate between workers.
    """

    summary: str
    devices: tuple[Device, ...]
    shapes_links: bool = False


PROVIDERS: Mapping[str, ProviderTraits] = {
    "local": ProviderTraits(
        summary="Worker processes on this machine under their own Ray instance; memory is not limited",
        devices=("cpu", "gpu", "tpu", "tpu-emulated"),
    ),
    "docker": ProviderTraits(
        summary="A container for each worker on this host, with cores, memory and a network of its own",
        devices=("cpu", "gpu", "tpu-emulated"),
        shapes_links=True,
    ),
    "cluster": ProviderTraits(
        summary="Nodes of a Ray cluster that is there already, at cluster.address",
        devices=("cpu", "gpu", "tpu", "tpu-emulated"),
    ),
}


def describe() -> list[dict[str, object]]:
    """Return the rows of `list providers`."""
    return [{"name": name, "summary": provider.summary, "params": []} for name, provider in PROVIDERS.items()]
