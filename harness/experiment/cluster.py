"""The experiment's `cluster` section: the shapes of its workers, and the Ray cluster that they run on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, TypeAlias, TypeGuard, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from harness.cluster import (
    MOST_MBIT,
    PROVIDERS,
    Burst,
    ClusterShape,
    Connection,
    Device,
    Rate,
    ShapeLink,
    WorkerLink,
)
from harness.errors import UsageError
from harness.sections import Count, Index, Memory, Option, Section, Sweep, Text, sweeps_of
from harness.written_values import kebab

CONNECTION_KEYS = tuple(Connection.model_fields)
_CLUSTER = ("cluster", ["cluster"])
"""Values for the cluster provider in a document."""
# A slice has several fields, which one variable cannot hold.
_AROUND_KEYS = tuple(key for key in CONNECTION_KEYS if key != "slice")
_DEVICES: tuple[Device, ...] = get_args(Device)
_MOST_PRICE = 1e6


def _provider(value: object) -> object:
    if value not in list(PROVIDERS):
        raise PydanticCustomError("provider", "must be {names}", {"names": " or ".join(map(repr, PROVIDERS))})
    return value


def _device(written: object) -> object:
    value = kebab(written) if isinstance(written, str) else written
    if value not in _DEVICES:
        raise PydanticCustomError("device", "must be {names}", {"names": " or ".join(map(repr, _DEVICES))})
    return value


def _by_number(value: object) -> object:
    """Keys as numbers; JSON and --set have them as text."""
    if not isinstance(value, dict):
        raise PydanticCustomError("mapping", "must be a mapping from a worker's number to its link")
    return {
        int(key) if isinstance(key, str) and key.isdecimal() else key: link for key, link in value.items()
    }


def _prices(value: object) -> dict[Device, float]:
    price_of = value if isinstance(value, dict) else dict.fromkeys(_DEVICES, value)
    prices = {d: float(price) for d, price in price_of.items() if d in _DEVICES and _is_price(price)}
    if not price_of or len(prices) < len(price_of):
        raise PydanticCustomError(
            "prices",
            "must be the price of a worker's hour, such as 0.35, or one by device, as in gpu: 2.5",
        )
    return prices


def _is_price(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST_PRICE


Provider: TypeAlias = Annotated[str, BeforeValidator(_provider)]
DeviceName: TypeAlias = Annotated[Device, BeforeValidator(_device)]
Prices: TypeAlias = Annotated[dict[Device, float], BeforeValidator(_prices)]


class Link(Section):
    """`cluster.link`: limit of each worker's link, the same in either direction; null for no limit."""

    always_written: ClassVar[frozenset[str]] = frozenset({"rate_mbit"})

    rate_mbit: Sweep[Rate | None] = (None,)
    burst_kb: Burst | None = None
    workers: Annotated[dict[Index, WorkerLink], BeforeValidator(_by_number)] = Field(default={})

    def of_shape(self, rate_mbit: float | None, n_workers: int) -> ShapeLink:
        """Link of a shape with one of the rates; limits of workers that it lacks are left out."""
        workers = tuple((worker, link) for worker, link in sorted(self.workers.items()) if worker < n_workers)
        return ShapeLink(rate_mbit=rate_mbit, burst_kb=self.burst_kb, workers=workers)

    @property
    def limits_mbit(self) -> Mapping[str, float]:
        """Key of each limited link → its rate, for a sweep the highest one."""
        swept = [rate for rate in self.rate_mbit if rate is not None]
        own = {f"workers.{number}.rate_mbit": link.rate_mbit for number, link in self.workers.items()}
        return {
            **({"rate_mbit": max(swept)} if swept else {}),
            **{key: rate for key, rate in own.items() if rate is not None},
        }


class Cluster(Connection):
    """`cluster`: where cases run and their shape; a list is a sweep.

    The keys of a connection are in the same section.

    Attributes:
        price_per_hour: price of one worker, by device, in any currency.
    """

    always_written: ClassVar[frozenset[str]] = frozenset(
        ("provider", "workers", "replicas_per_worker", "device", "cores_per_worker", "memory_bytes", "link")
    )

    provider: Annotated[
        Sweep[Provider],
        Option(name="provider", metavar="P", help="Place of the workers: local, docker or cluster."),
    ] = ("local",)
    workers: Annotated[Sweep[Count], Option(name="workers", metavar="N", help="Worker processes.")] = (2,)
    replicas_per_worker: Annotated[
        Sweep[Count], Option(name="replicas", metavar="R", help="Replicas per worker.")
    ] = (1,)
    device: Sweep[DeviceName] = ("cpu",)
    cores_per_worker: Sweep[Count] = (1,)
    memory_bytes: Sweep[Memory] = Field(default=(4 * 2**30,), alias="memory_per_worker")
    image: Sweep[Text | None] = (None,)
    share_gpus: bool = False
    link: Link = Link()
    price_per_hour: Prices | None = None

    @field_validator("price_per_hour")
    @classmethod
    def _of_devices(cls, prices: Prices | None, info: ValidationInfo) -> Prices | None:
        all_prices = prices or {}
        return {
            device: all_prices[device] for device in info.data.get("device", ()) if device in all_prices
        } or None

    @property
    def connection(self) -> Connection:
        """Connection of the cluster provider to its cluster."""
        return Connection(**{key: getattr(self, key) for key in CONNECTION_KEYS})

    def shapes(self) -> Iterator[ClusterShape]:
        sweeps = sweeps_of(self)
        for *values, rate_mbit in itertools.product(*sweeps.values(), self.link.rate_mbit):
            shape = ClusterShape(
                **dict(zip(sweeps, values, strict=True)),
                connection=self.connection,
                share_gpus=self.share_gpus,
            )
            yield dataclasses.replace(shape, link=self.link.of_shape(rate_mbit, shape.workers))

    def of_one(self, shape: ClusterShape) -> Cluster:
        link = self.link.model_copy(
            update={"rate_mbit": (shape.link.rate_mbit,), "workers": dict(shape.link.workers)}
        )
        return self.model_copy(
            update={"link": link, **{name: (getattr(shape, name),) for name in sweeps_of(self)}}
        )

    def require_possible(self) -> None:
        """Refuse impossible and contradictory settings.

        Raises:
            UsageError: for the first such setting.
        """
        self._require_devices()
        if self.share_gpus:
            self._require_shareable_gpus()
        self._require_links()
        self._require_connection()
        if self.slice is not None:
            self._require_slice()

    def _require_devices(self) -> None:
        for name in self.provider:
            able = PROVIDERS[name].devices
            unable = [device for device in self.device if device not in able]
            if unable:
                raise UsageError(
                    f"must be {' or '.join(map(repr, able))} with the provider {name}, got {unable[0]!r}",
                    field="cluster.device",
                )

    def _require_shareable_gpus(self) -> None:
        others = [device for device in self.device if device != "gpu"]
        if others:
            raise UsageError(
                f"is for cluster.device=gpu, got it with {others[0]}; drop it, or set cluster.device=gpu",
                field="cluster.share_gpus",
            )
        if "cluster" in self.provider:
            raise UsageError(
                "must be false with the provider cluster, where Ray gives each worker its own GPUs; lower "
                "cluster.workers or cluster.replicas_per_worker, or take --provider local on one of its "
                "hosts",
                field="cluster.share_gpus",
            )

    def _require_links(self) -> None:
        unable = [name for name in self.provider if not PROVIDERS[name].shapes_links]
        limits_mbit = self.link.limits_mbit
        if unable and limits_mbit:
            able = " or ".join(name for name, provider in PROVIDERS.items() if provider.shapes_links)
            raise UsageError(
                f"must be null with the provider {unable[0]}, which cannot limit links; use "
                f"--provider {able}",
                field="cluster.link.rate_mbit",
            )
        for field, rate in limits_mbit.items():
            if rate > MOST_MBIT:
                raise UsageError(
                    f"must be at most {MOST_MBIT:,.0f}, the highest limit that Linux can set, got "
                    f"{rate:,.10g}; lower it, or use null for no limit",
                    field=f"cluster.link.{field}",
                )
        n_workers = max(self.workers)
        for worker in sorted(self.link.workers):
            if worker >= n_workers:
                raise UsageError(
                    f"must be a worker's number, 0 to {n_workers - 1}, got {worker}; workers are counted "
                    "from 0",
                    field="cluster.link.workers",
                )

    def _require_connection(self) -> None:
        providers = ", ".join(self.provider)
        if "cluster" not in self.provider:
            first_key = next((key for key in CONNECTION_KEYS if self._is_given(key)), None)
            if first_key is not None:
                raise UsageError(
                    f"is of the cluster provider, got it with {providers}; drop it, or take "
                    "--provider cluster",
                    field=f"cluster.{first_key}",
                )
        elif len(self.provider) > 1:
            # Ray reads one token for each process, and every other provider makes its own.
            raise UsageError(
                f"cluster must be the only provider of an experiment, got {providers}; run it by itself and "
                "compare the two reports",
                field="cluster.provider",
            )
        elif self.address is None:
            raise UsageError(
                "must be given for the cluster provider, got nothing; set host:port of Ray's server for "
                "clients, as --set cluster.address=head:10001",
                field="cluster.address",
            )

    def _is_given(self, key: str) -> bool:
        return key in self.model_fields_set and getattr(self, key) is not None

    def _require_slice(self) -> None:
        if set(self.device) != {"tpu"}:
            raise UsageError(
                f"is for the device tpu, got it with {', '.join(self.device)}; drop it, or set "
                "cluster.device=tpu",
                field="cluster.slice",
            )
        if self.placement == "pack":
            raise UsageError(
                "must be spread on a TPU slice, each of whose hosts has one worker, got pack; drop it",
                field="cluster.placement",
            )


def without_connection(document: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """Drop the connection to a cluster if `values` choose another provider.

    Args:
        values: dotted path → value to set in the document.
    """
    section = document.get("cluster")
    is_elsewhere = values.get("cluster.provider", "cluster") not in _CLUSTER
    if not is_elsewhere or not isinstance(section, Mapping) or section.get("provider") not in _CLUSTER:
        return dict(document)
    return {**document, "cluster": {k: v for k, v in section.items() if k not in CONNECTION_KEYS}}


def connection_around(document: Mapping[str, object], surroundings: Mapping[str, str]) -> dict[str, object]:
    """Connection from environment variables, for an experiment on a cluster without an address.

    Returns:
        Dotted path → value to set in the document.
    """
    section = document.get("cluster")
    if not isinstance(section, Mapping) or section.get("provider") not in _CLUSTER:
        return {}
    if section.get("address") is not None:
        return {}
    values = {key: surroundings.get(f"STRATBENCH_CLUSTER_{key.upper()}") for key in _AROUND_KEYS}
    return {f"cluster.{key}": value for key, value in values.items() if value and key not in section}
