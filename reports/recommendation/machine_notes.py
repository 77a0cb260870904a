"""Notes on workers' machines: disturbances while repeats were timed, figures GPUs lack, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.records.outcome import DISTURBED_SHARE, UNSTEADY_DRIFT, UNSTEADY_SHARE, Stability
from harness.records.record import Record
from reports.recommendation.phrases import note, often
from reports.rows.report import Note

_SHARES = {
    "foreign_cpu": "machine-busy",
    "stolen_cpu": "cores-stolen",
    "throttled_cpu": "cpu-limited",
    "foreign_gpu": "gpu-busy",
    "throttled_gpu": "gpu-slowed",
}
"""Field of `Stability` → kind of note where the share is large enough to disturb."""
_FIGURES_OF_GPUS = {
    "joules_per_step": "energy",
    "busy": "share busy",
    "own_bytes": "memory of processes",
    "peak_bytes": "peak memory",
    "link_bytes_per_step": "bytes over NVLink",
    "pcie_bytes_per_step": "bytes over PCI Express",
    "foreign_gpu": "use by other programs",
    "n_foreign_gpu": "other programs",
    "throttled_gpu": "slowdowns",
    "gpu_sm_mhz": "clock",
    "gpu_memory_mhz": "clock of memory",
}
_STEADY_GOVERNORS = ("performance", "userspace")


def stability_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Disturbances of the repeats of a comparison, and what they mean for its figures."""
    known = [(name, r.stability) for name, records in cases.items() for r in records if r.stability]
    notes = [
        *_share_notes([stability for _, stability in known]),
        *_gpu_sharing_notes([stability for _, stability in known]),
        *_heat_and_drift_notes(known),
    ]
    if not notes:
        return []
    in_turn = all(r.method is None or r.method.interleave for records in cases.values() for r in records)
    return [*notes, note("ratios-robust" if in_turn else "ratios-affected")]


def is_disturbed(shares: Sequence[float], n_repeats: int) -> bool:
    """True if others took `DISTURBED_SHARE` in one repeat, or `UNSTEADY_SHARE` in more than half of them.

    Args:
        shares: shares taken by others in its unsteady repeats.
    """
    return max(shares, default=0.0) >= DISTURBED_SHARE or len(shares) > n_repeats / 2


def _share_notes(known: Sequence[Stability]) -> Iterator[Note]:
    reasons = ", ".join(dict.fromkeys(reason for repeat in known for reason in repeat.gpu_slowdowns))
    for field, kind in _SHARES.items():
        shares = [share for repeat in known if (share := getattr(repeat, field) or 0.0) >= UNSTEADY_SHARE]
        if not shares:
            continue
        low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        most = max(repeat.foreign_cpu_most or 0.0 for repeat in known)
        load = note(
            kind,
            share=low if low == high else f"{low}\N{EN DASH}{high}",
            often=often(len(shares), len(known)),
            most=f", {100 * most:.0f} % at peak" if most else "",
            reasons=reasons,
        )
        yield load if is_disturbed(shares, len(known)) else replace(load, severity="note")


def _gpu_sharing_notes(known: Sequence[Stability]) -> Iterator[Note]:
    beside = [repeat.n_foreign_gpu for repeat in known if repeat.n_foreign_gpu]
    if beside:
        yield note("gpu-shared", programs=max(beside), often=often(len(beside), len(known)))


def _heat_and_drift_notes(known: Sequence[tuple[str, Stability]]) -> Iterator[Note]:
    hot = sorted({name for name, stability in known if stability.n_hot})
    if hot:
        yield note("cores-hot", *hot)
    drifts = [(name, abs(stability.drift or 0.0)) for name, stability in known]
    drifting = [(name, drift) for name, drift in drifts if drift >= UNSTEADY_DRIFT]
    if drifting:
        names = dict.fromkeys(name for name, _ in drifting)
        share = f"{100 * max(drift for _, drift in drifting):.0f}"
        yield note("drift", *names, share=share, often=often(len(drifting), len(known)))


def unknown_gpu_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Figures of GPUs that no record has, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for record in (record for records in cases.values() for record in records):
        why_unknown = {
            **(record.gpus.why_no if record.gpus else {}),
            **(record.stability.why_no_gpu if record.stability else {}),
        }
        for name, reason in why_unknown.items():
            figure = _FIGURES_OF_GPUS.get(name, name)
            if figure not in reasons.setdefault(reason, []):
                reasons[reason].append(figure)
    text = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return [note("gpu-figures-unknown", figures=text)] if text else []


def setting_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Settings of the workers' machine that let the clock of its cores change, and GPUs that differ."""
    machines = {r.machine for records in cases.values() for r in records if r.machine is not None}
    slow = sorted(
        {machine.governor for machine in machines if machine.governor not in (None, *_STEADY_GOVERNORS)}
    )
    notes = [note("governor", governor=name) for name in slow]
    if any(machine.turbo for machine in machines):
        notes.append(note("turbo"))
    if any(machine.hyper_threads for machine in machines):
        notes.append(note("hyper-threads"))
    kinds = dict.fromkeys(gpu.model for machine in machines for gpu in machine.gpus or () if gpu.model)
    if len(kinds) > 1:
        notes.append(note("gpu-kinds", kinds=", ".join(kinds)))
    return notes
