"""Names of what the equivalence matrix is made of; needs no TensorFlow, so that collecting tests does not either."""

WORKLOADS = ("digits-mlp", "digits-cnn", "word-lm", "wide-mlp")
OPTIMIZERS = ("momentum", "adam", "adamw-clipped", "adagrad", "rmsprop")
TOPOLOGIES: tuple[tuple[int, ...], ...] = ((2,), (1, 1), (2, 2), (1, 1, 1), (2, 1), (1, 2))
EXACT = ("ps", "ps-load-balancing", "all-reduce")
