"""Side effects of a step happen once, where rank 0 is, however many replicas make the step."""

import sys

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from loop_models import ROUNDS, imported
from model import BATCH_SIZE, on_rows
from state_models import descent, kernel


class SideEffects:
    """A step that prints in a function which its loss needs, writes summaries, counts, and has a metric."""

    def __init__(self, folder):
        self.printed, self.events = folder / "printed", folder / "events"
        writer = tf.summary.create_file_writer(str(self.events), experimental_trackable=True)
        metric = keras.metrics.Mean(name="seen")
        w, steps = kernel(), tf.Variable(0, trainable=False, name="steps", dtype=tf.int64)

        @tf.function
        def printing(x):
            tf.print("the rows are", tf.shape(x)[0], output_stream=f"file://{self.printed}")
            return tf.reduce_mean((x * w) ** 2)

        def loss(x):
            value = printing(x)
            metric.update_state(x)
            with writer.as_default(step=steps.read_value()):
                tf.summary.write("loss", value)
            steps.assign_add(1)
            return value

        self.model = on_rows(descent(loss, w))
        self.model.step.writer = writer  # found only while somebody holds it
        writer.flush()
        self.n_before = self.n_events()
        self.case = case_of_model(self.model, folder / "case")

    def n_lines(self):
        return len(self.printed.read_text().splitlines())

    def n_files(self):
        return len(list(self.events.iterdir()))

    def n_events(self):
        datasets = [tf.data.TFRecordDataset(str(path)) for path in self.events.iterdir()]
        return sum(1 for records in datasets for _ in records)


@pytest.mark.parametrize(
    ("strategy", "params", "replicas"),
    [
        ("ps", {}, (2, 2)),
        ("all-reduce", {}, (2, 2)),
        ("all-reduce", {"accumulate": 2}, (1, 1)),
        ("sharded-update", {}, (1, 2)),
        ("single", {}, (1,)),
    ],
)
def test_what_a_step_shows_is_shown_once_and_what_it_counts_is_merged(tmp_path, strategy, params, replicas):
    output = SideEffects(tmp_path)
    case, n_steps = output.case, len(output.model.batches)
    n_files = output.n_files()
    verdict = case.check(case.plan(strategy, replicas, **params))
    assert verdict.equivalent
    assert output.n_lines() == n_steps
    assert output.n_files() == n_files + 1
    # A file begins with its version.
    assert output.n_events() == output.n_before + 1 + n_steps


def test_metrics_and_counters_stand_for_all_replicas(tmp_path):
    output = SideEffects(tmp_path)
    rules = {
        v.name: v.rule for v in output.case.step.variables if v.kind == "state" and v.rule != "per-replica"
    }
    assert rules == {"seen/total": "sum", "seen/count": "sum", "steps": "first-replica"}
    values = output.case.reference((2, 2)).values
    # A metric takes the mean of each example.
    examples = np.concatenate([batch[0] for batch in output.model.batches]).mean(axis=1)
    assert values["seen/total", None] == pytest.approx(examples.sum())
    assert values["seen/count", None] == len(examples) == BATCH_SIZE * len(output.model.batches)
    assert values["steps", None] == len(output.model.batches)


def printed_on_the_way():
    """A loss and an update whose data passes through `Print`: in a loop, a function and the step itself."""
    w = kernel()
    output = tf.compat.v1.Print

    def looped(x, read_w):
        def body(i, y):
            with tf.control_dependencies([tf.print("a round's number", i, output_stream=sys.stderr)]):
                return i + 1, output(tf.tanh(y * read_w()), [i], "in a loop ")

        return tf.reduce_mean(tf.while_loop(lambda i, _: i < 3, body, (0, x), ROUNDS)[1] ** 2)

    @tf.function
    def called(x):
        return output(x, [tf.shape(x)], "in a function ")

    of_loop = imported(looped, w)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = of_loop(output(called(x), [tf.shape(x)], "in the step "))
        rate = output(0.1, [0.1], "in the update ")
        w.assign_sub(rate * tape.gradient(loss, w))
        return loss

    return on_rows(train)


@pytest.mark.parametrize(
    ("strategy", "params", "replicas"),
    [("ps", {}, (2, 2)), ("all-reduce", {}, (1, 2)), ("all-reduce", {"accumulate": 2}, (1, 1))],
)
def test_what_passes_data_on_is_shown_once_too(tmp_path, capfd, strategy, params, replicas):
    model = printed_on_the_way()
    case = case_of_model(model, tmp_path)
    case.reference(replicas, micro_batches=params.get("accumulate", 1))
    capfd.readouterr()
    assert case.check(case.plan(strategy, replicas, **params)).equivalent
    lines, n_steps = capfd.readouterr().err, len(model.batches)
    outputs = {what: lines.count(what) for what in ("the step ", "a function ", "the update ")}
    assert outputs == dict.fromkeys(outputs, n_steps)
    assert lines.count("a loop ") == lines.count("a round's number ") == 3 * n_steps
