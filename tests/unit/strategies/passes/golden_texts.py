"""Comparison of texts with stored ones, without TensorFlow.

To rewrite the files after a change that is meant, delete those of `tests/golden/passes`, or of `resharding`,
and run the tests: a file that is missing is written, and its test fails once, so that somebody looks at it.
"""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[3] / "golden"


def check_text(text: str, file: str, *, folder: str = "passes") -> None:
    """The text is that of the file, which is written where there is none.

    Args:
        folder: `passes` for graphs, which are read back; others for what says more.
    """
    path = GOLDEN / folder / file
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} is new; look at it, then run this again")
    assert text == path.read_text()
