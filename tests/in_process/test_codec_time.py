"""Timing of encoding and decoding, which grows with the number of gradients."""

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.worker.jobs.after_repeats import N_TIMED, N_WARM, codec_seconds
from harness.worker.process.job import JobState
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.registry import make_plan
from strategies.topology import Topology


def timed(strategy: str, compressor: str, n_rows: int) -> float:
    kernel = VariableSummary(
        name="kernel",
        kind="trainable",
        dtype="float",
        shape=(n_rows, 512),
        bytes=4 * 512 * n_rows,
        synced=True,
        readiness=0,
    )
    step = StepSummary(workload="hand-made", n_nodes=1, variables=(kernel,), batch=())
    plan = make_plan(
        strategy, {"compressor": compressor}, step, Topology(replicas_per_task=(1, 1), batch_size=2)
    )
    assert plan.nodes[0].compressor is not None
    return codec_seconds(JobState(), plan)


@pytest.fixture
def made_bytes(monkeypatch):
    """Bytes of all tensors that each run of a session makes, as they come."""
    v1, result = tf.compat.v1, []
    run = v1.Session.run

    def traced(session, fetches):
        seen = v1.RunMetadata()
        fetched = run(
            session, fetches, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=seen
        )
        nodes = [node for device in seen.step_stats.dev_stats for node in device.node_stats]
        tensors = [output.tensor_description for node in nodes for output in node.output]
        result.append(sum(tensor.allocation_description.requested_bytes for tensor in tensors))
        return fetched

    monkeypatch.setattr(v1.Session, "run", traced)
    return result


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
@pytest.mark.parametrize("compressor", BY_NAME)
def test_all_that_there_is_to_encode_is_encoded_in_every_run(strategy, compressor, made_bytes):
    """256 times as many values; of a codec that was optimised away nothing would be made."""
    results = []
    for n_rows in (4096, 16):
        made_bytes.clear()
        assert timed(strategy, compressor, n_rows) > 0
        _initialised, *runs = made_bytes
        assert len(runs) == N_WARM + N_TIMED
        results.append(runs)
    many, few = results
    assert min(few) > 2 * 4 * 512 * 16  # as read, and as decoded
    assert min(many) > 100 * max(few)
