"""Every provider of workers: its name, what it is, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One row of the table.

    Args:
        devices: kinds of device that its workers can have.
        shapes_links: whether it can limit the rate between workers.
    """

    summary: str
    devices: tuple[str, ...]
    shapes_links: bool


PROVIDERS: Mapping[str, Provider] = {
    "local": Provider(
        summary="Worker processes on this machine under their own Ray instance; memory is not limited",
        devices=("cpu",),
        shapes_links=False,
    ),
}


def describe() -> list[dict[str, object]]:
    """Return the rows of `list providers`."""
    return [{"name": name, "summary": provider.summary, "params": []} for name, provider in PROVIDERS.items()]
