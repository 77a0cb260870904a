"""`stratbench doctor`: missing requirements of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.cli import output
from harness.cli.output import Answer
from harness.errors import EXIT_MISSING, EXIT_OK

if TYPE_CHECKING:
    from harness.provision.doctor import Check

EXAMPLE = "stratbench doctor"


def doctor() -> Answer:
    """Check this machine for missing requirements."""
    from harness.provision.doctor import checks

    results = checks()
    ok = all(check.ok for check in results if check.required)
    rows = [
        {
            "name": check.name,
            "ok": check.ok,
            "required": check.required,
            "detail": check.detail,
            "way_out": check.way_out or None,
        }
        for check in results
    ]
    return Answer(
        document={"ok": ok, "checks": rows},
        show=partial(_show, results),
        exit_status=EXIT_OK if ok else EXIT_MISSING,
    )


def _show(checks: Sequence[Check]) -> None:
    output.table(
        ["check", "", "found", "way out"],
        [[item.name, _mark(item), item.detail, item.way_out] for item in checks],
    )


def _mark(check: Check) -> str:
    if check.ok:
        return "ok"
    return "missing" if check.required else "limited"
