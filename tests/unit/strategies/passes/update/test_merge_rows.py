"""Merged rows of a step with a table, as text; see golden_steps."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_pass
from sparse_steps import table_step

from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology


def test_the_update_reads_one_row_per_id():
    step = table_step("squares = Square(rows) {T=float}", "squares")
    topology = Topology(replicas_per_task=(1, 1), batch_size=4)
    plan = make_plan("ps", {"merge_rows": True}, summarise(step, "table", {}), topology)
    check_pass(step, plan, 0, "merge-rows", "merge-rows.txt")


def test_merges_that_two_updates_read_are_shared():
    step = table_step("squares = Square(rows) {T=float}", "squares")
    topology = Topology(replicas_per_task=(1, 1), batch_size=4)
    plan = make_plan("ps", {"merge_rows": True}, summarise(step, "table", {}), topology)
    region = step.regions[0]
    other = replace(region, variable="slot", nodes=("squares",), targets=region.targets)
    both = replace(step, regions=(replace(region, nodes=("update",)), other))
    from strategies.passes.pass_order import passes_of

    merged = passes_of(plan, 0)[0].apply(both, topology)
    assert [name for name in merged.shared_update if name.startswith("rows/merged/")]
    assert all(not name.startswith("rows/merged/") for r in merged.regions for name in r.nodes)
