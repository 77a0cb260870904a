"""From a captured step and a plan to the program of one worker."""

from dataclasses import dataclass

from strategies.ir.train_graph import TrainGraph
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.plan.schema import Plan
from strategies.plan.waits import n_waiting
from strategies.planning.plan import topology_of
from strategies.program import Program
from strategies.tf_bridge.program import build_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One worker's program.

    Attributes:
        step: the rewritten step that the program was built from.
        seconds: of all passes.
    """

    program: Program
    step: TrainGraph
    seconds: float


def compile_step(step: TrainGraph, plan: Plan, task: int, *, check: bool = True) -> Compiled:
    """Apply a plan's passes for one task and build its program.

    Args:
        step: as captured.
        check: verify the graph after each pass; off where the time counts.
    """
    topology = topology_of(plan)
    rewritten = run_passes(passes_of(plan, task), step, topology, check=check)
    program = build_program(
        rewritten.step,
        topology,
        task,
        nodes_before=len(step.graph.nodes),
        served=any(plan.server_bytes),
        n_waiting=n_waiting(plan),
    )
    return Compiled(program=program, step=rewritten.step, seconds=rewritten.seconds)
