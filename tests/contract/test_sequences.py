"""Steps that assign, read, update and take gradients in a row end where TensorFlow's own run of them ends."""

import itertools

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from models import ASSIGNING  # noqa: E402

from harness.worker.artefact import InitialValues, save  # noqa: E402
from harness.worker.check import make_reference  # noqa: E402
from strategies.summary import summarise  # noqa: E402
from strategies.tf_bridge.boundary import raw_variable, variable_name  # noqa: E402
from strategies.tf_bridge.capture import capture  # noqa: E402
from strategies.topology import Topology  # noqa: E402


def run_as_it_is(model):
    """The values that the user's own function leaves, by name, after all batches as wholes."""
    for batch in model.batches:
        model.step(tf.nest.pack_sequence_as(model.spec, [tf.constant(part) for part in batch]))
    return {variable_name(v): raw_variable(v).numpy() for v in model.owned}


@pytest.mark.parametrize("name", ASSIGNING)
def test_the_reference_ends_where_the_users_function_does(name, tmp_path):
    """The capture runs as it was written: on one device, in the model's own type."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = ASSIGNING[name]()
    captured = capture(model.step, model.spec)
    before = dict(captured.initial)
    save(tmp_path, captured.step, captured.initial, summarise(captured.step, name, {}))
    alone = Topology(replicas_per_task=(1,), batch_size=len(model.batches[0][0]))
    reference = make_reference(captured.step, InitialValues(tmp_path), alone, model.batches)
    values = {name: value for (name, _), value in reference.yardstick.values.items()}
    plain = run_as_it_is(model)
    assert values.keys() == plain.keys()
    for variable, value in plain.items():
        moved = np.max(np.abs(value - before[variable].astype(value.dtype)), initial=1e-3)
        assert np.max(np.abs(values[variable] - value), initial=0) <= 2e-4 * moved, variable


@pytest.mark.parametrize(
    ("name", "replicas"), list(zip(ASSIGNING, itertools.cycle([(2, 1), (1, 2), (2, 2)]), strict=False))
)
def test_shards_together_are_the_whole_batch(cases, name, replicas):
    """None of these models lets examples meet, so that shards change nothing."""
    case = cases.model(name)
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    assert whole.yardstick.judge(case.reference(replicas).yardstick.values).equivalent
