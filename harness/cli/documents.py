"""JSON of `verify`, `plan` and `transform`, with the contract's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.planned_target import Planned, Verified
    from harness.prediction.slices import SliceCost
    from harness.verification.separability import Separability
    from harness.verification.verdict import Limits
    from harness.worker.jobs.transform import Transformation

FORMER_PASS_NAMES: Mapping[str, str] = {
    "leader-reduce": "lead",
    "leader-broadcast": "hand-on",
    "worker-mean": "own-mean",
    "local-reduce": "combine-local",
    "separate-collectives": "collectives-apart",
    "semi-sync-ps": "updates-in-turn",
    "broadcast-update-values": "hand-over",
    "placement": "place",
    "tcp-all-reduce": "transport-all-reduce",
    "compressed-tcp-all-reduce": "encoded-transport-all-reduce",
}
"""Pass → its name until 0.1, which documents also have for one release."""


def verify_document(answer: Verified) -> dict[str, object]:
    """The JSON of `verify`."""
    plan, verification, verdict = answer.plan, answer.verification, answer.verification.verdict
    nearest, loss, gradient = verdict.nearest, verdict.loss, verdict.nearest_gradient
    restored, capture = answer.restored, verification.capture
    document: dict[str, object] = {
        "workload": plan.workload,
        "strategy": plan.strategy,
        "strategy_params": dict(plan.strategy_params),
        "class": plan.strategy_class,
        "workers": len(plan.replicas_per_task),
        "replicas": plan.replicas_per_task[0],
        "steps": answer.steps,
        "dtype": answer.dtype,
        "restored": restored and {"path": str(restored.path), "step": restored.step},
        "last_batch": answer.last_batch,
        "equivalent": verification.equivalent,
        "reason": verification.reason,
        "max_update_error": nearest and nearest.update_error,
        **_limits(None if nearest is None else nearest.limits),
        "variables": [
            {"name": v.name, "kind": v.kind, "update_error": v.update_error, **_limits(v.limits)}
            for v in verdict.variables
        ],
        "undecidable": list(verification.undecidable),
        "loss_check": loss and {"error": loss.error, **_limits(loss.limits)},
        "gradient_check": gradient
        and {"variable": gradient.name, "error": gradient.error, **_limits(gradient.limits)},
        "loss": list(verification.losses),
        "reference_loss": list(verification.reference_losses),
        "results": [asdict(result) for result in verification.results],
        **_separability(verification.separability),
        "capture": capture and asdict(capture),
        "warnings": list(verification.warnings),
        "notes": list(verification.notes),
    }
    if verification.bound is not None:
        worst = verification.bound.worst
        document["within_bound"] = verification.bound.within
        document["bound_check"] = None if worst is None else asdict(worst)
    if verification.divergence is not None:
        document["shrink"] = {
            "pass": verification.divergence.pass_name,
            "variable": verification.divergence.variable,
        }
    return document


def plan_document(planned: Planned) -> dict[str, object]:
    """The JSON of `plan`, which `--plan` reads."""
    document = planned.plan.model_dump(mode="json")
    cost, matrix = planned.slice_cost, planned.matrix
    return {
        **document,
        "class": document.pop("strategy_class"),
        **({} if matrix is None else {"payload_matrix": matrix.sent, "pull_matrix": matrix.pulled}),
        **({} if cost is None else {"slice": _slice_cost(cost)}),
    }


def transform_document(transformation: Transformation) -> dict[str, object]:
    """The JSON of `transform`."""
    document: dict[str, object] = {
        "nodes_before": transformation.nodes_before,
        "nodes_after": transformation.nodes_after,
        "passes": [{**asdict(timing), **_former_name(timing.name)} for timing in transformation.passes],
        "seconds": transformation.seconds,
    }
    return document if transformation.text is None else {**document, "text": transformation.text}


def _former_name(pass_name: str) -> dict[str, str]:
    former = FORMER_PASS_NAMES.get(pass_name)
    return {} if former is None else {"former_name": former}


def _limits(limits: Limits | None) -> dict[str, float | None]:
    floor, tolerance = (None, None) if limits is None else (limits.floor, limits.tolerance)
    return {"noise_floor": floor, "tolerance": tolerance}


def _slice_cost(cost: SliceCost) -> dict[str, object]:
    """Cost of a plan on a TPU slice; None for kinds of collectives that the plan lacks."""
    generation, torus = cost.slice.generation, cost.slice.torus
    return {
        "accelerator": cost.slice.accelerator,
        "topology": cost.slice.topology,
        "n_chips": torus.n_chips,
        "n_devices": cost.slice.n_devices,
        "wrapped": list(torus.wrapped),
        "links_per_chip": generation.links_per_chip,
        "links_in_use": torus.links_in_use,
        "link_bytes_per_s": torus.link_bytes_per_s,
        "link_source": generation.source,
        **asdict(cost.collectives),
        "all_reduce_s": cost.seconds.get("sum"),
        "reduce_scatter_s": cost.seconds.get("scatter"),
        "all_gather_s": cost.seconds.get("gather"),
    }


def _separability(separability: Separability | None) -> dict[str, object]:
    if separability is None:
        return {"separable": None, "separability": None}
    figures = asdict(separability)
    return {"separable": figures.pop("separable"), "separability": figures}
