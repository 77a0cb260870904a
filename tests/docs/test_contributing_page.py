"""The pass on the page runs, and a compressor takes only the files that the page names."""

import importlib.util
import re
import subprocess

import pytest
from pages import ROOT

PAGE = (ROOT / "docs" / "contributing.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_a_compressor_takes_two_product_files() -> None:
    """Whatever names QSGD's codec must be edited for another one like it."""
    naming_files = subprocess.run(
        [
            "git",
            "grep",
            "-lE",
            "Quantized|\"qsgd\"|'qsgd'",
            "--",
            "harness",
            "strategies",
            "workloads",
            "reports",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert sorted(naming_files) == sorted(set(re.findall(r"`(strategies/\S+\.py)`", section("A compressor"))))


@pytest.mark.tensorflow
def test_the_pass_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "unit" / "strategies" / "passes")
    from golden_steps import tiny

    from strategies.passes.pass_order import passes_of
    from strategies.passes.run import run_passes
    from strategies.passes.task_plan import TaskPlan
    from strategies.planner import topology_of
    from strategies.registry import make_plan
    from strategies.summary import summarise
    from strategies.topology import Topology

    code = re.search(r"^```python\n(.*?)^```$", section("A pass"), re.MULTILINE | re.DOTALL)
    assert code is not None
    file = tmp_path / "clip_contributions.py"
    file.write_text(code.group(1))
    spec = importlib.util.spec_from_file_location("clip_contributions", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "clip_contributions", module)
    spec.loader.exec_module(module)

    step, topology = tiny(), Topology(replicas_per_task=(1, 1), batch_size=2)
    plan = make_plan("all-reduce", {}, summarise(step, "tiny", {}), topology)
    clip = module.ClipContributions(plan=TaskPlan(plan=plan, task=0))
    passes = list(passes_of(plan, 0))
    before = next(k for k, item in enumerate(passes) if item.name == "dense-all-reduce")
    nodes = run_passes([*passes[:before], clip, *passes[before:]], step, topology_of(plan)).step.graph.nodes
    assert any("/clipped/" in node.name for node in nodes)
    assert clip.apply(step, topology) is step
