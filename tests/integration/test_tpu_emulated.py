"""A run on emulated TPU cores: right, counted, and told in the report."""

from pathlib import Path

import pytest
from watched_run import records, watched

pytestmark = pytest.mark.ray

N_REPLICAS = 4
EXPERIMENT = """
name: cores
workloads: [digits-mlp]
strategies: [all-reduce, tpu-replicate, "tpu-replicate:reshard=true,steps_per_loop=4",
             "tpu-replicate:device_loop=true,steps_per_loop=4"]
cluster: {provider: local, device: tpu-emulated, workers: 2, replicas_per_worker: 2}
measure: {warmup_steps: 4, steps: 12, rounds: 1, repeats: 1, trace: true}
"""


def test_it_is_right_and_tells_what_resharding_came_to(tmp_path: Path) -> None:
    (tmp_path / "cores.yaml").write_text(EXPERIMENT)
    with watched(["run", "cores.yaml", "--out", "out"], tmp_path) as run:
        status, output, errors = run.finish(500.0)
        assert run.leftovers() == []
    assert status == 0, errors
    results = {
        (r["strategy"], r["strategy_params"].get("reshard"), r["strategy_params"].get("device_loop")): r
        for r in records(tmp_path / "out")
    }
    assert len(results) == 4
    for record in results.values():
        assert record["equivalence"]["equivalent"], record
        assert record["device"] == "tpu-emulated"
        # TensorFlow's collectives say more than what they carry, and these variables are small.
        assert 1.0 <= record["tcp_bytes_per_step"] / record["payload_bytes_per_step"] <= 1.1
    messages = [record["resharding"] for record in results.values() if record["resharding"]]
    assert len(messages) == 1
    (messages,) = messages
    assert (messages["shards"], messages["unshards"]) == (1, 1)
    # Of loops of four steps, but for the first of the warm-up.
    assert 3 < messages["reshards"] <= 4
    assert messages["kept_bytes"] * N_REPLICAS == pytest.approx(messages["whole_bytes"], rel=0.01)
    # Each replica sends the others its part of what is whole afterwards.
    assert messages["sent_bytes"] == pytest.approx((N_REPLICAS - 1) * messages["whole_bytes"], rel=0.01)
    assert "do not choose a strategy for TPUs" in output
    assert "Resharding per replica and host loop" in (tmp_path / "out" / "report.html").read_text()
