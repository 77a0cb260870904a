"""A run in containers: the strategies' bytes are all that their data network carries."""

from pathlib import Path

import pytest
from watched_run import records, watched

pytestmark = [pytest.mark.docker, pytest.mark.ray]

EXPERIMENT = """
name: bytes
workloads: [wide-mlp]
strategies: [ps, all-reduce]
cluster: {provider: docker, workers: 2}
measure: {warmup_steps: 2, steps: 8, rounds: 2, window_s: 0, repeats: 1, trace: false}
compare: {baseline: ps}
"""
# TCP's and Ethernet's headers, and answers without data, as a share of the data.
MOST_BESIDE = 0.01


def test_the_data_network_carries_what_strategies_send_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_text(EXPERIMENT)
    with watched(["run", "bytes.yaml", "--out", "out"], tmp_path) as run:
        status, _, errors = run.finish()
    assert status == 0, errors
    lines = records(tmp_path / "out")
    equivalent = [record["strategy"] for record in lines if record["equivalence"]["equivalent"]]
    assert sorted(equivalent) == ["all-reduce", "ps"]
    for record in lines:
        sent = sum(map(sum, record["tcp_matrix"]))
        assert record["tcp_bytes_per_step"] == pytest.approx(sent)
        assert record["payload_bytes_per_step"] <= sent
        # What a busy machine drops goes through the interface again, and is no message.
        carried = sent + record["resent_bytes_per_step"]
        assert sent <= record["interface_bytes_per_step"] <= carried * (1 + MOST_BESIDE)
        assert record["exposed"] is False
        assert record["provenance"]["image_digest"].startswith("sha256:")
