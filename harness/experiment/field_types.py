"""Types of the experiment file's values, whose errors say what a person can write."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

from harness.cluster.connection import is_address, is_network
from harness.cluster.link_limits import MOST_MBIT
from harness.cluster.providers import PROVIDERS, Device
from harness.durations import parse_duration_s
from harness.experiment.references import kebab
from harness.experiment.spec import BatchRule, Precision
from harness.shares import parse_share
from strategies.errors import suggestion

_UNITS = {
    "": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_MIN_MEMORY_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 2**50
_LEAST_SHARE = 0.001
_MOST_DURATION_S = 10.0**7
_MOST_PRICE = 1e6
T = TypeVar("T")


def as_list(value: object) -> object:
    """One value as a list of itself."""
    return value if isinstance(value, list) else [value]


def as_kebab(value: object) -> object:
    """A name as records spell it."""
    return kebab(value) if isinstance(value, str) else value


def _each_once(values: list[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _memory(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        n_bytes = value
    else:
        match = (
            re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)?", value.strip()) if isinstance(value, str) else None
        )
        if not match or (match[2] or "") not in _UNITS:
            raise PydanticCustomError("memory", "must be bytes or a size such as 4GiB or 512MiB")
        # Only so many, since a float can also be infinite.
        n_bytes = int(min(float(match[1]) * _UNITS[match[2] or ""], 2 * _MAX_MEMORY_BYTES))
    if n_bytes < _MIN_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at least 64MiB; write a unit, such as 4GiB")
    if n_bytes > _MAX_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at most 1024TiB")
    return n_bytes


def _provider(value: object) -> object:
    if value not in list(PROVIDERS):
        raise PydanticCustomError("provider", "must be {names}", {"names": " or ".join(map(repr, PROVIDERS))})
    return value


def _device(written: object) -> object:
    value = as_kebab(written)
    known = {device: None for provider in PROVIDERS.values() for device in provider.devices}
    if value not in list(known):
        raise PydanticCustomError("device", "must be {names}", {"names": " or ".join(map(repr, known))})
    return value


def _precision(value: object) -> object:
    known: tuple[str, ...] = get_args(Precision)
    if value not in known:
        close = f" ({suggestion(value, known)})" if isinstance(value, str) else ""
        names = " or ".join(map(repr, known))
        raise PydanticCustomError("precision", "must be {names}{close}", {"names": names, "close": close})
    return value


def by_number(value: object) -> object:
    """Keys as numbers, though JSON and --set write them as text."""
    if not isinstance(value, dict):
        raise PydanticCustomError("mapping", "must be a mapping from a worker's number to its link")
    return {
        int(key) if isinstance(key, str) and key.isdecimal() else key: each for key, each in value.items()
    }


def _address(value: object) -> object:
    if not (isinstance(value, str) and is_address(value)):
        raise PydanticCustomError(
            "address", "must be host:port of Ray's server for clients, such as head:10001"
        )
    return value


def _network(value: object) -> object:
    if not (isinstance(value, str) and is_network(value)):
        raise PydanticCustomError("network", "must be a network of IPv4 as CIDR, such as 10.0.0.0/16")
    return value


def _topology(value: object) -> object:
    if not (isinstance(value, str) and re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", value)):
        raise PydanticCustomError("topology", "must be chips along each axis, such as 2x2x2 or 4x4")
    return value


def _percent(value: object) -> object:
    share = parse_share(str(value)) if isinstance(value, str | float) else None
    if share is None or not _LEAST_SHARE <= share <= 1:
        raise PydanticCustomError("percent", "must be a share such as 3%, from 0.1% to 100%")
    return share


def _prices(value: object) -> dict[Device, float]:
    devices: list[Device] = [device for provider in PROVIDERS.values() for device in provider.devices]
    given = value if isinstance(value, dict) else dict.fromkeys(devices, value)
    prices = {device: _price(price) for device, price in given.items() if device in devices}
    if not given or len(prices) < len(given) or None in prices.values():
        raise PydanticCustomError(
            "prices",
            "must be the price of a worker's hour, such as 0.35, or one by device, as in gpu: 2.5",
        )
    return {device: price for device, price in prices.items() if price is not None}


def _price(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST_PRICE:
        return None
    return float(value)


def _duration(value: object) -> float:
    seconds = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(value, str):
        seconds = parse_duration_s(value)
    if seconds is None or not 0 < seconds <= _MOST_DURATION_S:
        raise PydanticCustomError("duration", "must be a time such as 90s, 30m or 1h30m")
    return float(seconds)


Sweep: TypeAlias = Annotated[
    list[T], BeforeValidator(as_list), Field(min_length=1), AfterValidator(_each_once)
]
# What is counted is also listed: a slip of the keyboard must not take all memory.
Count: TypeAlias = Annotated[int, Field(ge=1, le=10**6)]
Index: TypeAlias = Annotated[int, Field(ge=0)]
Memory: TypeAlias = Annotated[int, BeforeValidator(_memory)]
Provider: TypeAlias = Annotated[str, BeforeValidator(_provider)]
DeviceName: TypeAlias = Annotated[Device, BeforeValidator(_device)]
PrecisionName: TypeAlias = Annotated[Precision, BeforeValidator(_precision)]
BatchName: TypeAlias = Annotated[BatchRule, BeforeValidator(as_kebab)]
Rate: TypeAlias = Annotated[float, Field(gt=0, le=MOST_MBIT, allow_inf_nan=False)]
Burst: TypeAlias = Annotated[int, Field(ge=2, le=10**6)]
Text: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Address: TypeAlias = Annotated[str, BeforeValidator(_address)]
Network: TypeAlias = Annotated[str, BeforeValidator(_network)]
Percent: TypeAlias = Annotated[float, BeforeValidator(_percent)]
Duration: TypeAlias = Annotated[float, BeforeValidator(_duration)]
ChipTopology: TypeAlias = Annotated[str, BeforeValidator(_topology)]
Prices: TypeAlias = Annotated[dict[Device, float], BeforeValidator(_prices)]
