"""Plans as passes see them, for tests that apply one pass by itself."""

from strategies.passes.task_plan import TaskPlan
from strategies.plan.schema import Plan, PlanNode


def task_plan(*nodes: PlanNode, replicas_per_task: tuple[int, ...] = (1,)) -> TaskPlan:
    """The plan of task 0 with these nodes; predicted bytes, which passes do not read, are 0."""
    n_tasks = len(replicas_per_task)
    plan = Plan(
        workload="by hand",
        strategy="by hand",
        strategy_params={},
        strategy_class="exact",
        replicas_per_task=replicas_per_task,
        batch_size=sum(replicas_per_task),
        device="cpu",
        nodes=nodes,
        payload_bytes_per_step=0,
        server_bytes=(0,) * n_tasks,
        worker_bytes=0,
    )
    return TaskPlan(plan=plan, task=0)


def changed_plan(plan: TaskPlan, **fields: object) -> TaskPlan:
    """The same task of a plan with other fields."""
    return TaskPlan(plan=plan.plan.model_copy(update=fields), task=plan.task)
