"""Updates that read rows of equal ids as their sum only."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from sparse_steps import table_step

from strategies.passes.update.linear_rows import read_linearly

LINEAR = {
    "times a rate": ("d = Mul(rows, rate) {T=float}", "d"),
    "a rate times": ("d = Mul(rate, rows) {T=float}", "d"),
    "divided, turned and copied": (
        "a = RealDiv(rows, rate) {T=float}\nb = Neg(a) {T=float}\nd = Identity(b) {T=float}",
        "d",
    ),
    "widened": ("a = Cast(rows) {SrcT=float, DstT=double}\nd = Cast(a) {SrcT=double, DstT=double}", "d"),
    "and summed for a square": (
        (
            "n = Const() {dtype=int32, value=5}\nsums = UnsortedSegmentSum(rows, ids, n) {T=float}\n"
            "squares = Square(sums) {T=float}\nd = Mul(rows, rate) {T=float}"
        ),
        "d",
    ),
    "and merged by the optimizer itself": (
        (
            "u = Unique(ids) {T=int32}\nsums = UnsortedSegmentSum(rows, u:1, u) {T=float}\n"
            "squares = Square(sums) {T=float}\nd = Mul(rows, rate) {T=float}"
        ),
        "d",
    ),
}
OTHERS = {
    "squared": ("d = Square(rows) {T=float}", "d"),
    "times itself": ("d = Mul(rows, rows) {T=float}", "d"),
    "a rate divided by rows": ("d = RealDiv(rate, rows) {T=float}", "d"),
    "clipped by value": ("d = Minimum(rows, rate) {T=float}", "d"),
    "clipped by norm": (
        "norm = L2Loss(rows) {T=float}\nd = RealDiv(rows, norm) {T=float}",
        "d",
    ),
    "more than scaled": ("d = Add(rows, rate) {T=float}", "d"),
    "rounded": ("a = Cast(rows) {SrcT=float, DstT=half}\nd = Cast(a) {SrcT=half, DstT=float}", "d"),
    "counted": ("n = Size(ids) {T=int32}\nd = Mul(rows, rate) {T=float}\nc = Neg(n) {T=int32}", "d"),
    "beside a value of each row": (
        "a = ResourceGather(w, ids) {dtype=float}\nd = Mul(rows, a) {T=float}",
        "d",
    ),
    "in a branch": ("a = If(rate, rows)\nd = Identity(a) {T=float}", "d"),
    "times what is not certainly a scalar": ("s = Unknown(rate)\nd = Mul(rows, s) {T=float}", "d"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_sums_of_rows_come_to_the_same(name):
    assert read_linearly(table_step(*LINEAR[name])) == {"w"}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_sees_each_row(name):
    assert not read_linearly(table_step(*OTHERS[name]))
