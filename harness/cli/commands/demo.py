"""`stratbench demo`: a first result in about a minute, and the next commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import typer

from harness.cli import options, output
from harness.cli.commands.run import measured
from harness.cli.output import Answer
from harness.cli.process import WorkerOptions

EXAMPLE = "stratbench demo"
_NEXT = """
Next, your own model: write a file my_model.py with a function that returns a compiled Keras model and a
batched tf.data.Dataset:

    def make():
        ...
        return model, dataset

  stratbench verify my_model.py:make --strategy all-reduce   check that a strategy trains it correctly
  stratbench run demo --workloads my_model.py:make           measure it with the strategies above
  stratbench list strategies                                 show all strategies and their usual names
"""


def demo(
    context: typer.Context,
    *,
    out: options.OutFolder = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Show a first result: one workload, three strategies, a minute."""
    from harness.experiment.load import load_experiment

    answer = measured(context, load_experiment("demo"), worker_options, out=out)
    return replace(answer, show=partial(_show, answer.show))


def _show(show_result: Callable[[], None]) -> None:
    show_result()
    output.print_text(_NEXT)
