"""A captured ResNet-50 training step survives the way through the graph unchanged and still imports."""

import pytest

from strategies.ir.graph_rules import verify

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def resnet_step():
    import keras

    keras.backend.clear_session()
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = losses(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    concrete = step.get_concrete_function(
        tf.TensorSpec([None, 64, 64, 3], tf.float32), tf.TensorSpec([None], tf.int64)
    )
    return concrete.graph.as_graph_def(add_shapes=True)


def test_resnet_step_comes_back_unchanged(resnet_step):
    from strategies.tf_bridge.graphdef import graph_from_graphdef, graphdef_from_graph

    graph = graph_from_graphdef(resnet_step)
    assert len(graph.nodes) > 2_000
    verify(graph)
    back = graphdef_from_graph(graph)
    assert back.SerializeToString(deterministic=True) == resnet_step.SerializeToString(deterministic=True)
    with tf.Graph().as_default():
        tf.compat.v1.import_graph_def(back, name="")
