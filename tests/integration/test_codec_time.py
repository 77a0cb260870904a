"""Seconds of encoding and decoding, which grow with what there is to encode."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from harness.worker.codec_time import codec_seconds  # noqa: E402
from harness.worker.process import JobState  # noqa: E402
from strategies.compressors import BY_NAME  # noqa: E402
from strategies.plan import StepSummary, VariableSummary  # noqa: E402
from strategies.registry import make_plan  # noqa: E402
from strategies.topology import Topology  # noqa: E402


def seconds(strategy: str, compressor: str, n_rows: int) -> float:
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
    return codec_seconds(JobState(), plan.model_dump_json())


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
@pytest.mark.parametrize("compressor", BY_NAME)
def test_many_more_values_take_longer(strategy, compressor):
    """256 times as many, which no other load hides; a codec that was optimised away would take no time."""
    assert seconds(strategy, compressor, 4096) > 3 * seconds(strategy, compressor, 16)
