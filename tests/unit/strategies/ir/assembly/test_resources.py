"""Gathers from a variable's value that become lookups in the variable, and those that must not."""

import pytest
from graph_text import from_text

from strategies.ir.assembly.resources import with_row_lookups
from strategies.ir.graph_rules import verify

GRAPH = """
table = VarHandleOp() {{dtype=float, shape=<9,2>, shared_name='table'}}
ids = Placeholder() {{dtype=int32, shape=<?>}}
read = ReadVariableOp(table) {{dtype=float}}
zero = Const() {{dtype=int32, value=int32<> [{axis}]}}
rows = GatherV2(read, ids, zero{waits}) {{Taxis=int32, Tindices=int32, batch_dims={batch_dims}}}
more = GatherV2(read, ids, zero) {{Taxis=int32, Tindices=int32, batch_dims={batch_dims}}}
{user}
update = AssignSubVariableOp(table, rows, ^read) {{dtype=float}}
"""


def graph(axis=0, batch_dims=0, waits="", user=""):
    return from_text(GRAPH.format(axis=axis, batch_dims=batch_dims, waits=waits, user=user))


def test_gathers_take_rows_of_the_variable_and_a_write_waits_for_them():
    step = with_row_lookups(graph(), {"table"})
    rows = step.by_name["rows"]
    assert (rows.op, rows.inputs) == ("ResourceGather", ("table", "ids"))
    assert rows.attrs["Tindices"] == "int32"
    assert step.by_name["more"].op == "ResourceGather"
    assert step.by_name["update"].control_inputs == ("rows", "more")


def test_what_the_read_waited_for_the_lookup_waits_for():
    step = graph(user="before = NoOp()", waits=", ^ids")
    read = step.by_name["read"].changed(inputs=("table", "^before"))
    step = step.with_nodes(read if n.name == "read" else n for n in step.nodes)
    assert with_row_lookups(step, {"table"}).by_name["rows"].control_inputs == ("before", "ids")


def test_a_value_that_something_else_takes_is_read_too():
    step = with_row_lookups(graph(user="scores = Mul(read, read) {T=float}"), {"table"})
    assert step.by_name["rows"].op == "ResourceGather"
    assert step.by_name["update"].control_inputs == ("read", "rows", "more")


CAST = """
table = VarHandleOp() {{dtype=float, shape=<9,2>, shared_name='table'}}
ids = Placeholder() {{dtype=int32, shape=<?>}}
read = ReadVariableOp(table) {{dtype=float}}
value = Identity(read) {{T=float}}
half = Cast(value) {{DstT=half, SrcT=float, Truncate=false}}
zero = Const() {{dtype=int32, value=int32<> [0]}}
rows = GatherV2(half, ids, zero) {{Taxis=int32, Tindices=int32, batch_dims=0}}
{user}
update = AssignSubVariableOp(table, rows, ^read) {{dtype=float}}
"""


def test_rows_pass_what_the_value_passed_on_its_way():
    step = with_row_lookups(from_text(CAST.format(user="")), {"table"})
    verify(step)
    results = {name: (n.op, n.inputs) for name, n in step.by_name.items() if name.startswith("rows")}
    assert results == {
        "rows/rows_0": ("ResourceGather", ("table", "ids")),
        "rows/rows_1": ("Identity", ("rows/rows_0",)),
        "rows": ("Cast", ("rows/rows_1",)),
    }
    assert step.by_name["rows"].attrs["DstT"] == "half"
    assert step.by_name["update"].control_inputs == ("rows/rows_0",)


def test_a_cast_value_that_something_else_takes_is_read_too():
    step = with_row_lookups(from_text(CAST.format(user="scores = Mul(half, half) {T=half}")), {"table"})
    assert step.by_name["rows/rows_0"].op == "ResourceGather"
    assert step.by_name["update"].control_inputs == ("read", "rows/rows_0")


def test_a_gather_that_comes_after_a_write_takes_the_value_of_before():
    step = graph()
    late = {
        "rows": step.by_name["rows"].changed(inputs=("read", "ids", "zero", "^update")),
        "update": step.by_name["update"].changed(inputs=("table", "more", "^read")),
    }
    after = with_row_lookups(step.with_nodes(late.get(n.name, n) for n in step.nodes), {"table"})
    assert after.by_name["rows"].op == "GatherV2"
    assert after.by_name["more"].op == "ResourceGather"
    assert after.by_name["update"].control_inputs == ("read", "more")


@pytest.mark.parametrize(
    "other", [graph(axis=1), graph(batch_dims=1)], ids=["another-axis", "a-batch-of-tables"]
)
def test_other_gathers_stay(other):
    assert with_row_lookups(other, {"table"}) is other


def test_values_of_something_else_stay():
    step = graph()
    assert with_row_lookups(step, {"another"}) is step


def test_lookups_that_would_wait_for_each_other_stay_gathers():
    """Updates of two tables, each with ids that come from the other's update, read before both."""
    step = from_text("""
a = VarHandleOp() {dtype=float, shape=<9,2>, shared_name='a'}
b = VarHandleOp() {dtype=float, shape=<9,2>, shared_name='b'}
ids = Placeholder() {dtype=int32, shape=<?>}
of_a = ReadVariableOp(a) {dtype=float}
of_b = ReadVariableOp(b) {dtype=float}
zero = Const() {dtype=int32, value=int32<> [0]}
write_a = AssignAddVariableOp(a, of_a, ^of_a) {dtype=float}
write_b = AssignAddVariableOp(b, of_b, ^of_b) {dtype=float}
rows_a = GatherV2(of_a, ids, zero, ^write_b) {Taxis=int32, Tindices=int32, batch_dims=0}
rows_b = GatherV2(of_b, ids, zero, ^write_a) {Taxis=int32, Tindices=int32, batch_dims=0}
""")
    assert with_row_lookups(step, {"a", "b"}) is step
