"""How long the counted steps of a case wait for their input, and whether that binds them."""

from collections.abc import Sequence

import numpy as np

from harness.measure.made_steps import Window
from harness.records.facts.costs import INPUT_BOUND_SHARE, InputWait


def input_wait(windows: Sequence[Window]) -> InputWait | None:
    """What steps wait for batches of a pipeline; None where these were staged.

    A step that workers make together waits as long as the worker that gets its batch last.

    Args:
        windows: that are counted, at least one.
    """
    waits = [window.input_s for window in windows]
    known = [
        wait_s[:, window.n_lead :]
        for window, wait_s in zip(windows, waits, strict=True)
        if wait_s is not None
    ]
    if len(known) < len(windows):
        return None
    each_s = np.concatenate(known, axis=1)
    longest_s = each_s.max(axis=0)
    steps_s = sum(float(window.slowest_s[window.n_lead :].sum()) for window in windows)
    share = float(longest_s.sum()) / steps_s
    return InputWait(
        mean=float(longest_s.mean()),
        share=share,
        mean_of_workers=tuple(map(float, each_s.mean(axis=1))),
        bound=share >= INPUT_BOUND_SHARE,
    )
