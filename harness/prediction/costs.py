"""Costs of exchanges between workers of one kind of machine: processor time, latency, and time per byte.

On CPUs, communication competes with computation for the same cores: a probe measures the processor time of
both ends beside the latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from strategies.plan.exchanges.flow import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """Costs of the collectives of one transport, for each of their members, in seconds.

    Attributes:
        step_s: processor time of a step with any of them.
        message_s: processor time of a message. variable_s: that of each variable in it. table_s: that of each
            table whose rows it has. hop_s: that of each hop of a message.
        round_s: time between a member's data and the next member's.
        sum_s, scatter_s, gather_s: processor time per byte that a member sends. rows_s: the same for rows of
            sparse gradients. row_s: processor time for each row that a member gives or gets.
    """

    step_s: float = 1e-4
    message_s: float = 3e-5
    variable_s: float = 1e-5
    table_s: float = 5e-5
    hop_s: float = 2e-5
    round_s: float = 3e-5
    sum_s: float = 5e-10
    scatter_s: float = 5e-10
    gather_s: float = 5e-10
    rows_s: float = 5e-10
    row_s: float = 1e-7

    def byte_s(self, op: Op) -> float:
        """Processor time per byte of dense values that a member sends."""
        return {"sum": self.sum_s, "scatter": self.scatter_s, "gather": self.gather_s}[op]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCost:
    """Costs of exchanges between a worker and a server, in seconds.

    Attributes:
        step_s: processor time of a step with any server, for each worker.
        request_s: time after which a request waits for the threads of the server.
        message_s: time of the server's thread for a message. client_s: processor time of the worker for it.
        variable_s: time for each variable that a message packs, at both ends.
        table_s: time in which a worker combines the rows of a gradient, and a server adds them.
        row_s: time for each of these rows, and for each that a server looks up.
        latency_s: time between the first byte sent and received.
        ids_s: time from a request's arrival at a server until the ids of rows arrive. It decides which of two
            servers computes first; the probe cannot measure it.
        send_s, receive_s: processor time per byte, of its sender and of its receiver.
        add_s: time of the server's thread per byte of a gradient that it adds.
        update_s: time of the server's thread for each variable that it updates, besides the update itself.
        token_s: time of the first server's thread for each worker that waits for the update.
    """

    step_s: float = 3e-4
    request_s: float = 3e-4
    message_s: float = 3e-5
    client_s: float = 3e-5
    variable_s: float = 1e-5
    table_s: float = 5e-5
    row_s: float = 1e-7
    latency_s: float = 3e-5
    ids_s: float = 1e-3
    send_s: float = 5e-10
    receive_s: float = 5e-10
    add_s: float = 3e-10
    update_s: float = 1e-5
    token_s: float = 5e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueCost:
    """Costs of processing the values of variables, in seconds of processor time.

    Attributes:
        variable_s: time for each variable. value_s: time per byte of the values in their own type.
    """

    variable_s: float = 3e-5
    value_s: float = 5e-10


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs of all exchanges.

    Attributes:
        collectives: transport → costs. codecs: compressor → costs of encoding and decoding.
        cut: costs of a part of a variable that is cut.
        cut_table_s: processor time of a part of a table of rows that is cut.
        assign_s: processor time per byte of a new value from its owner that a replica stores.
        exchange_variation: standard deviation ÷ mean of a task's processor time for exchanges. Workers wait
            for the slowest of them.
    Raises:
        ValueError: a cost is negative or not finite.
    """

    collectives: Mapping[str, CollectiveCost] = field(default_factory=dict)
    servers: ServerCost = field(default_factory=ServerCost)
    codecs: Mapping[str, ValueCost] = field(default_factory=dict)
    cut: ValueCost = field(default_factory=lambda: ValueCost(variable_s=3e-5, value_s=2e-10))
    cut_table_s: float = 1e-4
    assign_s: float = 3e-10
    exchange_variation: float = 0.2

    def __post_init__(self) -> None:
        wrong = [name for name, value in self.flat().items() if not 0 <= value < math.inf]
        if wrong:
            raise ValueError(f"costs must be finite and at least 0, got others for {', '.join(wrong)}")

    def flat(self) -> dict[str, float]:
        """All costs by name, such as `tcp.message_s`."""
        return {
            **{
                f"{name}.{key}": value
                for name, cost in self.collectives.items()
                for key, value in _items(cost)
            },
            **{f"servers.{key}": value for key, value in _items(self.servers)},
            **{
                f"codec {name}.{key}": value
                for name, cost in self.codecs.items()
                for key, value in _items(cost)
            },
            **{f"cut.{key}": value for key, value in _items(self.cut)},
            "cut_table_s": self.cut_table_s,
            "assign_s": self.assign_s,
            "exchange_variation": self.exchange_variation,
        }

    def scaled(self, factor: float) -> Costs:
        """Costs on a processor that takes `factor` times as long."""
        return self.with_values(
            {name: value * factor for name, value in self.flat().items() if name != "exchange_variation"}
        )

    def with_values(self, values: Mapping[str, float]) -> Costs:
        """Copy with other values, by the names of `flat`."""

        def of(prefix: str, cost: CollectiveCost | ServerCost | ValueCost) -> dict[str, float]:
            return {key: values.get(f"{prefix}.{key}", value) for key, value in _items(cost)}

        return Costs(
            collectives={name: replace(cost, **of(name, cost)) for name, cost in self.collectives.items()},
            servers=replace(self.servers, **of("servers", self.servers)),
            codecs={name: replace(cost, **of(f"codec {name}", cost)) for name, cost in self.codecs.items()},
            cut=replace(self.cut, **of("cut", self.cut)),
            cut_table_s=values.get("cut_table_s", self.cut_table_s),
            assign_s=values.get("assign_s", self.assign_s),
            exchange_variation=values.get("exchange_variation", self.exchange_variation),
        )


def _items(cost: CollectiveCost | ServerCost | ValueCost) -> list[tuple[str, float]]:
    return [(item.name, getattr(cost, item.name)) for item in fields(cost)]
