"""Parameters and arithmetic of the shipped workloads at their full sizes, built and never run."""

import math

import pytest

from workloads.registry import resolve
from workloads.table import SIZES, WORKLOADS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

BATCH_SIZE = 4
# A loop's body is seen once, however often it runs.
LOOPS = {"word-lm": {"sequence_length": 1}, "lm1b": {"steps": 1}}
# Trainable parameters as published, and how far off the published figure may be by its rounding.
PUBLISHED = {
    "resnet50": (25.6e6, 0.005),  # He et al. 2015, as torchvision and Keras count them
    "resnet101": (44.5e6, 0.005),
    "vgg16": (138_357_544, 0),  # Simonyan and Zisserman 2014, configuration D
    "densenet121": (7_978_856, 0),  # Huang et al. 2016
    "inception-v3": (23.8e6, 0.005),  # Szegedy et al. 2015
    # Devlin et al. 2018: 110M and 340M, without pre-training's heads; with them as transformers 4 counts.
    "bert-base": (110_106_428, 0),
    "bert-large": (336_226_108, 0),
    "gpt-small": (124_439_808, 0),  # Radford et al. 2019, as released
    "lm1b": (0.83e9, 0.01),  # Jozefowicz et al. 2016, table 1
    "dlrm": (540e6, 0.005),  # Naumov et al. 2019, section 5
    # Tables of 32 and 8 numbers for each, 64-32-16-8, and the last layer over 8 + 8.
    "ncf": ((6_040 + 3_706) * 40 + (64 * 32 + 32) + (32 * 16 + 16) + (16 * 8 + 8) + 17, 0),
    "linear-regression": (100_001, 0),
}


def test_every_workload_of_several_sizes_has_published_parameters() -> None:
    sized = {name: entry for name, entry in WORKLOADS.items() if entry.sizes}
    assert set(PUBLISHED) == set(sized)
    assert all(tuple(entry.sizes) == SIZES for entry in sized.values())


@pytest.fixture
def loops_in_the_graph():
    """Loops whose bodies are nodes of the graph, which is what the profiler looks at."""
    import tensorflow as tf

    tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()


def build(name: str):
    """A full workload with forward and backward of a batch in a graph: it, its variables and the graph."""
    import keras
    import tensorflow as tf

    keras.backend.clear_session()
    size = {"size": "full"} if WORKLOADS[name].sizes else {}
    workload = resolve(name, {**size, **LOOPS.get(name, {})})
    # The shapes of examples are those of few; those of all would take memory.
    spec = (
        resolve(name, {**size, **LOOPS.get(name, {}), **({"examples": 8} if size else {})})
        .dataset(0)
        .element_spec
    )
    with tf.Graph().as_default() as graph:
        step = workload.train_step()
        batch = tf.nest.map_structure(
            lambda s: tf.compat.v1.placeholder(s.dtype, [BATCH_SIZE, *s.shape]), spec
        )
        loss = step.loss(batch)
        gradients = tf.gradients(loss, [variable.value for variable in step.variables])
        results = [loss, *(getattr(g, "values", g) for g in gradients if g is not None)]
        sub_graph = tf.compat.v1.graph_util.extract_sub_graph(
            graph.as_graph_def(add_shapes=True), [tensor.op.name for tensor in results]
        )
    with tf.Graph().as_default() as graph:
        # Without what gives variables their first values.
        tf.graph_util.import_graph_def(sub_graph, name="")
    return workload, step.variables, graph


def profiled_flops(graph) -> float:
    """Operations by TensorFlow's profiler; it takes a transposed first factor for one that is not."""
    import tensorflow as tf

    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    profiled = tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
    for op in graph.get_operations():
        if op.type.startswith("BatchMatMul") and op.get_attr("adj_x"):
            *_, summed, size = op.inputs[0].shape
            profiled += 2 * math.prod(op.outputs[0].shape) * (summed - size)
    return profiled


# The work of its matrices is the same for any number of examples.
NO_WORK_PER_EXAMPLE = {"equal-variables"}


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - NO_WORK_PER_EXAMPLE))
def test_parameters_are_as_published_and_flops_as_profiled(name: str, loops_in_the_graph: None) -> None:
    workload, variables, graph = build(name)
    if name in PUBLISHED:
        published, rounding = PUBLISHED[name]
        n_parameters = sum(math.prod(variable.shape) for variable in variables)
        assert n_parameters == pytest.approx(published, rel=rounding, abs=0)
    assert workload.flops_per_example == pytest.approx(profiled_flops(graph) / BATCH_SIZE, rel=0.1)
