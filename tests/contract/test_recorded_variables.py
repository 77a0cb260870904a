"""Variables of a model built by TensorFlow's strategies: those that something references."""

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras

from strategies.baselines.variables import recorded


def model():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, name="dense")])


@pytest.fixture(params=["plain", "mirrored"])
def distribution(request):
    return (
        tf.distribute.get_strategy()
        if request.param == "plain"
        else tf.distribute.MirroredStrategy(["CPU:0"])
    )


def test_a_model_that_another_was_made_of_does_not_count(distribution):
    with distribution.scope(), recorded() as variables:
        clone_model = keras.models.clone_model(model())
    assert len(variables) == len(clone_model.variables) == 2
    assert {id(v) for v in variables} == {id(v.value) for v in clone_model.variables}


def test_models_that_are_both_kept_both_count_in_their_order(distribution):
    with distribution.scope(), recorded() as variables:
        models = [model(), model()]
    assert [id(v) for v in variables] == [id(v.value) for model_of in models for v in model_of.variables]


def test_the_model_stays_as_it_is(distribution):
    with distribution.scope(), recorded():
        other = model()
    assert other(tf.ones((2, 4))).shape == (2, 3)
