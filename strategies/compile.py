"""Program of one worker, from a captured step and a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.ir.random_ops import require_seeds_of_variables
from strategies.ir.train_graph import TrainGraph
from strategies.passes.pass_order import n_shared, passes_of
from strategies.passes.run import PassTiming, run_passes
from strategies.passes.tpu.segments import replica_program
from strategies.plan.schema import Plan
from strategies.planner import n_waiting, topology_of
from strategies.program import Program, ReplicaProgram
from strategies.tf_bridge.program import build_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One worker's program.

    Attributes:
        step: the rewritten step.
        timings: times of all passes, in order; tasks share the timing of passes that they have in common.
    """

    program: Program
    step: TrainGraph
    timings: tuple[PassTiming, ...]

    @property
    def seconds(self) -> float:
        return sum(timing.seconds for timing in self.timings)


def compile_step(step: TrainGraph, plan: Plan, task: int, *, check: bool = True) -> Compiled:
    """Apply a plan's passes for one task and build its program.

    Args:
        step: the captured step.
        check: True verifies the graph after each pass; False saves the time.
    """
    (compiled,) = compile_tasks(step, plan, (task,), check=check)
    return compiled


def compile_tasks(
    step: TrainGraph, plan: Plan, tasks: Sequence[int], *, check: bool = True
) -> tuple[Compiled, ...]:
    """Compile a step for several tasks; leading passes that are equal for all tasks run once."""
    topology = topology_of(plan)
    passes = [passes_of(plan, task) for task in tasks]
    shared = n_shared(plan, passes[0])
    begun = run_passes(passes[0][:shared], step, topology, check=check)
    compiled = []
    for task, own in zip(tasks, passes, strict=True):
        rewritten = run_passes(own[shared:], begun.step, topology, check=check)
        program = build_program(
            rewritten.step,
            topology,
            task,
            nodes_before=len(step.graph.nodes),
            served=any(plan.server_bytes),
            n_waiting=n_waiting(plan),
        )
        timings = (*begun.timings, *rewritten.timings)
        compiled.append(Compiled(program=program, step=rewritten.step, timings=timings))
    return tuple(compiled)


def compile_replica(step: TrainGraph, plan: Plan, *, check: bool = True) -> ReplicaProgram:
    """Apply a plan's passes for one task of TPU devices, and cut the step into segments.

    Args:
        step: the captured step.
        check: True verifies the graph after each pass; False saves the time.
    Raises:
        UnsupportedError: replicas would draw the same random numbers, or use TensorFlow 1 loops.
    """
    require_seeds_of_variables(step.graph)
    return replica_program(run_passes(passes_of(plan, 0), step, topology_of(plan), check=check).step)
