"""Names of what the equivalence matrix is made of; no TensorFlow, for collecting needs none."""

from collections.abc import Iterator
from typing import Any

from strategies.registry import describe, resolve

WORKLOADS = ("digits-mlp", "digits-cnn", "word-lm", "wide-mlp")
OPTIMIZERS = ("momentum", "adam", "adamw-clipped", "adagrad", "rmsprop")
TOPOLOGIES: tuple[tuple[int, ...], ...] = ((2,), (1, 1), (2, 2), (1, 1, 1), (2, 1), (1, 2))
# Strategy → parameters with which tiny models have parts.
PARTITIONED: dict[str, dict[str, int]] = {
    "partitioned-ps": {},
    "uneven-partitioned-ps": {},
    "sharded-ps": {"min_bytes": 1},
    "partitioned-all-reduce": {},
    "random-axis-partitioned-all-reduce": {"seed": 3},
    "fully-sharded": {"min_bytes": 1},
}


def _exact() -> Iterator[str]:
    for described in describe():
        strategy, _ = resolve(described["name"])
        if strategy.strategy_class == "exact" and strategy.runner == "graph" and not strategy.single:
            yield strategy.name


EXACT = tuple(_exact())
"""Every strategy of class `exact` that rewrites graphs; rivals are checked where they run."""

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, PARTITIONED.get(name, {})) for name in EXACT},
    "ps-with-proxies": ("ps-load-balancing", {"local_proxy_variable": True}),
    "robust-ps-mean": ("robust-ps", {"rule": "mean"}),
    "robust-all-reduce-mean": ("robust-all-reduce", {"rule": "mean"}),
}
"""Exact strategies, and knobs that make another one of it, with parameters."""
CORE_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpu-replicate": ROWS["tpu-replicate"],
    "tpu-replicate-in-parts": ("tpu-replicate", {"reshard": True}),
    "tpu-replicate-loop-on-cores": ("tpu-replicate", {"device_loop": True}),
}
"""Those of cores, which run one program, so that their shards are equal and not every step can be theirs."""
_WHERE, _UNSUMMED = "must have a result of known shape, got Where", "must be of a type that cores sum"
NOT_ON_CORES = {
    # Keras's optimizers that keep a root mean ask which rows have moved.
    **dict.fromkeys(("word-lm+adagrad", "word-lm+rmsprop", "shared-embedding", "sampled-rows"), _WHERE),
    **dict.fromkeys(("counted-state", "summed-integers", "counted-first"), _UNSUMMED),
    "looked-up": "must look nothing up in tables of keys",
    "looked-at-afterwards": "must show nothing",
}
"""Model → why cores do not train it."""


def refusal(model: str, row: str) -> str | None:
    """Why a strategy does not train a model, if so."""
    return NOT_ON_CORES.get(model) if row in CORE_ROWS else None
