"""The models of the contract matrix by name, each made anew when it is captured."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import keras_models
import layer_models
import loop_models
import sequence_models
import state_models
import tensorflow as tf
from model import BATCH_SIZE, N_STEPS, Model

from workloads import registry
from workloads.data.examples import examples_of

SMALL: Mapping[str, Mapping[str, Any]] = {
    "digits-mlp": {"units": 12},
    "digits-cnn": {"filters": 3, "units": 8},
    "word-lm": {"vocabulary": 40, "sequence_length": 4, "embedding": 6, "units": 5},
    "wide-mlp": {"units": 16, "layers": 2, "features": 9, "examples": 64},
}
OPTIMIZER_PARAMS: Mapping[str, Mapping[str, Any]] = {
    "momentum": {"optimizer": "momentum"},
    "adam": {"optimizer": "adam"},
    "adamw-clipped": {"optimizer": "adamw", "clip_global_norm": 0.5},
    "adagrad": {"optimizer": "adagrad"},
    "rmsprop": {"optimizer": "rmsprop"},
}


def shipped(name: str, optimizer: str) -> Model:
    """A small instance of a shipped workload."""
    workload = registry.resolve(name, {**SMALL[name], **OPTIMIZER_PARAMS[optimizer]})
    fed = itertools.islice(examples_of(workload, seed=0).batches(BATCH_SIZE), N_STEPS)
    return Model(
        step=workload.train_step(),
        spec=workload.dataset(0).element_spec,
        batches=[list(batch) for batch in fed],
    )


SHIPPED: Mapping[str, Callable[[], Model]] = {
    f"{name}+{optimizer}": partial(shipped, name, optimizer)
    for name in SMALL
    for optimizer in OPTIMIZER_PARAMS
}
STATE: Mapping[str, Callable[[], Model]] = {
    "unused-and-shared": state_models.unused_and_shared,
    "summed-state": state_models.summed_state,
    "counted-state": state_models.counted_state,
    "summed-integers": state_models.summed_integers,
    "averaged-state": state_models.averaged_state,
    "two-tapes": state_models.two_tapes,
    "looked-up": state_models.looked_up,
    "looked-at-afterwards": state_models.looked_at_afterwards,
}
ASSIGNING: Mapping[str, Callable[[], Model]] = {
    "target-network": sequence_models.target_network,
    "followed-first": sequence_models.followed_first,
    "spectral": sequence_models.spectral,
    "divided-table": sequence_models.divided_table,
    "counted-first": sequence_models.counted_first,
}
SEQUENCES: Mapping[str, Callable[[], Model]] = {
    "adversarial": sequence_models.adversarial,
    "sharpness-aware": sequence_models.sharpness_aware,
    "penalised": sequence_models.penalised,
    "thrice": sequence_models.thrice,
    "noisy": sequence_models.noisy,
    "noisy-labels": sequence_models.noisy_labels,
    "spectral-critic": sequence_models.spectral_critic,
}
OWN: Mapping[str, Callable[[], Model]] = {
    "shared-embedding": layer_models.shared_embedding,
    "tied-embeddings": layer_models.tied_embeddings,
    "stacked": layer_models.stacked,
    "with-empty": layer_models.with_empty,
    "clipped-and-averaged": layer_models.clipped_and_averaged,
    "accumulated": layer_models.accumulated,
    "summed": layer_models.summed,
    "two-optimizers": layer_models.two_optimizers,
    "primes-and-ones": lambda: layer_models.primes_and_ones(keras.optimizers.Adam(0.1)),
    "first-loop": loop_models.first_loop,
    "first-loops-nested": loop_models.first_loops_nested,
    "first-loop-in-step": partial(loop_models.first_loop, loop_models.imported_into_step),
    "first-loops-in-step": loop_models.first_loops_in_step,
    "loops-and-branches": loop_models.loops_and_branches,
    "recurrent": loop_models.recurrent,
    "looked-up-in-a-loop": loop_models.looked_up_in_a_loop,
    "sampled-rows": state_models.sampled_rows,
    **STATE,
    **ASSIGNING,
    **SEQUENCES,
}
FIRST = tf.compat.v1.train
BY_TENSORFLOW: Mapping[str, Callable[[], Model]] = {
    "tensorflow-momentum": lambda: layer_models.by_tensorflow(FIRST.MomentumOptimizer(0.1, 0.9)),
    "tensorflow-adam": lambda: layer_models.by_tensorflow(FIRST.AdamOptimizer(0.05)),
}
COMPILED: Mapping[str, Callable[[], Model]] = {
    f"keras-{name}": partial(keras_models.compiled, name) for name in keras_models.COMPILED
}
NORMALISED, NORMALISED_SUM = "normalised", "normalised-sum"
SYNCHRONIZED, PARTLY = "synchronized", "partly-synchronized"
MODELS = {
    **SHIPPED,
    **OWN,
    **BY_TENSORFLOW,
    **COMPILED,
    NORMALISED: layer_models.normalised,
    NORMALISED_SUM: lambda: layer_models.normalised(reduction="sum"),
    SYNCHRONIZED: lambda: layer_models.normalised(synchronized=("of_images", "shared")),
    PARTLY: lambda: layer_models.normalised(synchronized=("shared",)),
}
# One instance of each shipped workload, all optimizers among them and `shared-embedding`.
FEW = ("digits-mlp+momentum", "digits-cnn+adam", "word-lm+rmsprop", "wide-mlp+adamw-clipped", *OWN)
