"""Of what TensorFlow says of a failed graph, the reason is kept, with the user's line or the node."""

import pytest

from harness.graph_errors import graph_error

REASON = "Incompatible shapes: [2,32] vs. [8,32]"
HEADING = "Graph execution error:\n\n"
ROOTS = f"""  (0) INVALID_ARGUMENT:  {REASON}
\t [[{{{{node a/b}}}}]]
  (1) CANCELLED:  Function was cancelled
0 successful operations."""
DEFINED = """Graph execution error:

Detected at node while/add defined at (most recent call last):
  File "/home/u/.venv/lib/python3.11/site-packages/keras/src/layers/layer.py", line 12, in __call__

  File "/home/u/model.py", line 7, in loss

  File "/home/u/.venv/lib/python3.11/site-packages/keras/src/ops/numpy.py", line 3, in add

"""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            f"Graph execution error:\n\n{REASON}\n\t [[{{{{node while/add}}}}]]",
            f"{REASON}, at node while/add",
        ),
        (
            f"{HEADING}From /job:worker/replica:0/task:1:\n{REASON}\n\t [[{{node while/add}}]]",
            f"{REASON}, at node while/add",
        ),
        (
            f"{REASON}\n\t [[{{{{function_node body_1}}}}{{{{node add}}}}]] [Op:__inference_f_2]",
            f"{REASON}, at node add",
        ),
        (f"{DEFINED}{REASON}\n\t [[{{{{node while/add}}}}]]", f"{REASON}, at /home/u/model.py:7"),
        (
            f"{HEADING}2 root error(s) found.\n{ROOTS}",
            f"{REASON}, at node a/b",
        ),
        (f"From /job:worker/replica:0/task:0:\n{REASON}", REASON),
        ("Graph execution error:\n\n", "Graph execution error:"),
        ("a plain message\nof two lines", "a plain message"),
        ("", "no message"),
    ],
)
def test_a_reason_takes_one_line(message: str, told: str) -> None:
    assert graph_error(message) == told
