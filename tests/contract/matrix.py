"""Names of what the equivalence matrix is made of; no TensorFlow, for collecting needs none."""

WORKLOADS = ("digits-mlp", "digits-cnn", "word-lm", "wide-mlp")
OPTIMIZERS = ("momentum", "adam", "adamw-clipped", "adagrad", "rmsprop")
TOPOLOGIES: tuple[tuple[int, ...], ...] = ((2,), (1, 1), (2, 2), (1, 1, 1), (2, 1), (1, 2))
EXACT = ("ps", "ps-load-balancing", "all-reduce")
# Strategy → parameters with which tiny models have parts.
PARTITIONED: dict[str, dict[str, int]] = {
    "partitioned-ps": {},
    "uneven-partitioned-ps": {},
    "sharded-ps": {"min_bytes": 1},
    "partitioned-all-reduce": {},
    "random-axis-partitioned-all-reduce": {"seed": 3},
}
