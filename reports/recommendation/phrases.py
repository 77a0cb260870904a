"""Phrases of verdicts, and the table of notes: severity, phrase and remedy by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from harness.records.comparison import MIN_REPEATS_INTERVAL
from reports.rows.report import Advice, Note, VerdictKind

LABELS: Mapping[VerdictKind, str] = {
    "clear": "WINNER",
    "together": "NO CLEAR WINNER",
    "no-interval": "NOT ENOUGH REPEATS",
    "none": "NO RESULT",
}
"""Kind of a verdict → the words that its headline begins with."""

# Claims, each after the label of its kind.
FASTEST: Final = "{leader}, {ratios}"
ONE_DEVICE: Final = "no strategy is faster than one device"
NEXT: Final = "the next, {name}"
TIED: Final = "{names} are tied: {ratio}; {decides}"
NO_INTERVAL: Final = (
    "{leader} leads, {ratio}; at least {least} repeats are needed: rerun with --repeats {least}"
)
ONLY_ONE: Final = "only {leader} was measured and checked correct"
NO_CANDIDATE: Final = "no strategy was measured and checked correct"
UNDER_FAULTS: Final = "strategies are not ranked under faults; compare {metrics}"
UNDER_FAULTS_UNMEASURED: Final = (
    "strategies are not ranked under faults; set measure.evaluate to compare the models"
)

# What would decide a tie.
REPEATS_TO_DECIDE: Final = "about {n} repeats would decide: rerun with --repeats {n}"
TOO_MANY_TO_DECIDE: Final = "more than {n} repeats would be needed to decide"
TOO_FEW_REPEATS: Final = f"too few repeats of {{names}}, at least {MIN_REPEATS_INTERVAL} are needed"

# Details.
FASTEST_TOO: Final = "Fastest: {claim}"
NOT_SIGNIFICANT: Final = "No significant difference between {first} and {second}: p = {p}"
NOT_SIGNIFICANT_CORRECTED: Final = (
    "No significant difference between {first} and {second}: p = {p}, {corrected} corrected for {n} pairs"
)
NOT_RANKED: Final = "{how}, not ranked: {names}"
FASTER: Final = "Faster"
FASTER_WITHOUT_INTERVAL: Final = "Faster (no CI)"
NOT_DIFFERENT: Final = "No significant difference"
MEASURED: Final = "Measured"
NO_ANSWER: Final = {
    "fastest": "compare.goal is fastest, but fewer than two strategies were measured and checked correct",
    "cheapest": "compare.goal is cheapest, but fewer than two ranked strategies have a price; set "
    "cluster.price_per_hour",
    "network": "compare.goal is network, but fewer than two ranked strategies sent a known number of bytes",
}

# Answers for other goals.
CHEAPEST: Final = {
    "clear": "{leader} is cheapest: {cost}",
    "together": "{names} are tied for cheapest: {leader} {cost}",
    "no-interval": "{leader} is cheapest by its mean: {cost}, no CI",
}
LEAST_NETWORK: Final = "{leader} sends least of those that communicate: {figure}{rate}"
BYTES_TIED: Final = "{names} are tied for least traffic: {leader} {figure}{rate}"
BYTES_BOUNDED: Final = "only an upper bound is known of {bounded}"
BYTES_TOO_FEW: Final = f"at least {MIN_REPEATS_INTERVAL} repeats of each are needed"

# Links of several rates.
OVERTAKES: Final = "{slower}, {name} overtakes {other} (measured at {low} and {high}, n = {n})"
MAY_OVERTAKE: Final = (
    "{slower}, {name} may overtake {other}: not significant at {ends} (measured at {low} and {high}, n = {n})"
)
BELOW: Final = "Below about {rate}"
SOMEWHERE_ABOVE: Final = "Somewhere above {rate}"
NONE_OVERTAKES: Final = "No strategy overtakes {best} between the measured link rates"
NONE_OVERTAKES_PERHAPS: Final = (
    "No strategy overtakes {best} between the measured link rates, by means: not significant at {ends}"
)
NONE_OVERTAKES_ELSEWHERE: Final = "Between the other link rates no strategy overtakes the best, by means"
UNKNOWN_WITH_ONE: Final = (
    "Unknown between {low} and {high}: only {name} was measured and checked correct at both; measure another"
)
UNKNOWN_WITH_NONE: Final = (
    "Unknown between {low} and {high}: no strategy was measured and checked correct at both; measure two"
)
UNKNOWN_WITHOUT_BEST: Final = (
    "Unknown between {low} and {high}: {best} is best at {here}, but has no checked result at {there}; "
    "measure it there"
)

DISTURBANCES: Final = {
    "machine-busy": "machine busy",
    "cores-stolen": "machine busy",
    "cpu-limited": "CPU limited",
    "gpu-busy": "GPU busy",
    "gpu-shared": "GPU shared",
    "cores-shared": "cores shared",
    "averages-differ": "slow steps",
}
"""Kind of a warning that makes a headline provisional → the reason in two words."""
PROVISIONAL: Final = "{label} (provisional, {reason})"

_WARNINGS: Final = {
    "machine": {
        "machine-busy": "machine busy: other programs used {share} % of the workers' cores {often}"
        "{most} | rerun on an idle machine",
        "cores-shared": "{text} | use fewer workers or a machine with more cores",
        "cores-stolen": "machine busy: other virtual machines used {share} % of the workers' cores "
        "{often} | rerun on an idle host",
        "cpu-limited": "CPU limited: a cgroup quota withheld {share} % of the workers' cores {often} | "
        "raise the CPU limit of the container",
        "gpu-busy": "GPU busy: other programs used {share} % of a GPU's time {often} | rerun on idle GPUs",
        "gpu-shared": "GPU shared: {programs} other program(s) on a worker's GPU {often} | "
        "rerun on idle GPUs",
        "gpu-slowed": "GPU slowed: clocks were held down for {share} % of the time {often} ({reasons})"
        " | check power and cooling",
        "cores-hot": "CPU throttled by heat while {names} ran | check cooling, then rerun",
        "retransmits": "{text} | check the network",
    },
    "correctness": {
        "not-equivalent": "NOT EQUIVALENT: {names}"
        " | `stratbench verify {workload} --strategy {first} --shrink` finds where it differs",
        "beyond-bound": "BEYOND ITS BOUND: {names}"
        " | `stratbench verify {workload} --strategy {first}` shows what is lost",
        "capture-wrong": "captured step differs: {text}",
        "not-separable": "NOT SEPARABLE: {names}: {text}",
        "check-blind": "check is blind: {names} sends nothing, yet passed it | do not rely on ✓ here",
    },
    "figures": {
        "averages-differ": "slow steps: average rate below the median rate by {shares}; over whole windows "
        "{ratios} | rerun on an idle machine",
        "self-differs": "A/A test failed: {names} is {ratio} itself | distrust differences of this size",
        "ratios-wide": "CI target of {within} not reached: {ratios} | raise measure.until.at_most",
        "bytes-below": "{names}: {outer} bytes are below {inner} bytes | one of the two is wrong: report it",
        "bytes-apart": "{names}: {outer} bytes are {times} the {inner} bytes | expected within {most} %: "
        "look for other traffic",
        "bytes-unexpected": "{names}: {outer} bytes without {inner} bytes | look for other traffic",
        "warmup-unsettled": "{text} | raise measure.warmup_steps",
    },
    "method": {
        "advice": "{names}: {text}",
        "baseline-absent": "{text}",
        "batch-differs": "batch of {names} is {batch}, of the others {usual}"
        " | compare examples/s, not step times",
        "tpu-emulated": "TPU cores are emulated: rates are those of this machine"
        " | do not choose a strategy for TPUs by them",
        "input-bound": "input-bound: share of step time waiting for input: {shares} | use --input staged or "
        "a faster dataset",
        "host-bound": "host-bound: GPUs of {names} wait for their host | raise the batch size",
        "rows-summed": "sparse rows with equal ids are summed before the update in {summed}, not in "
        "{separate} | with Adam-like optimizers or clipping these take different steps",
    },
}
"""Subject → kind → phrase and remedy of a warning, the gravest first."""
_REMARKS: Final = {
    "drift": "step time drifted by up to {share} % {often} ({names}) | compare ratios, not examples/s",
    "repeats-missing": "{names}: {n} of {of} repeats have a result",
    "slow-steps": "slow steps: average rate below the median rate by {shares}",
    "ratios-robust": "load affects examples/s; ratios, measured in turns, hardly",
    "ratios-affected": "load affects examples/s and ratios: cases took no turns"
    " | set measure.interleave: true",
    "payload-bound": "payload of {names} is an upper bound: sparse rows are known only at run time",
    "separability-unknown": "{names}: {text}",
    "capture-unknown": "captured step: {text}",
    "self": "A/A test: {names} is {ratio} itself",
    "ratios-narrow": "CI target of {within} reached",
    "links-differ": "link limits differ: {links}",
    "bfloat16": "mixed precision: layers in bfloat16, variables in float32",
    "float16": "mixed precision: layers in float16 with loss scaling, variables in float32",
    "xla": "XLA compiles each worker's computation, not communication or Python calls",
    "tf32": "float32 products may round to TF32 in timed steps, never in the check",
    "pipeline": "batches come from the workload's own tf.data pipeline",
    "preparation": "up to {total} s before the first timed step ({names}: {stages}); limit of capture and "
    "references: {limit} s",
    "observer": "instrumentation changes the mean step: {changes}",
    "observer-unknown": "overhead of instrumentation unknown for {names}: {text}",
    "gpu-figures-unknown": "GPU figures unknown in some repeats: {figures}",
    "governor": "CPU governor is {governor}: clocks change | set it to performance",
    "turbo": "CPU turbo is on: few busy cores run faster than many",
    "hyper-threads": "hyper-threading is on: a core may be half of one",
    "gpu-kinds": "workers have different GPUs: {kinds}",
    "record": "{text}",
}
"""Kind → phrase of a note that is no warning."""
SUBJECTS: Final = {kind: subject for subject, rows in _WARNINGS.items() for kind in rows}
"""Kind of a warning → its subject."""
NOTES: Final = {kind: text for rows in (*_WARNINGS.values(), _REMARKS) for kind, text in rows.items()}
"""Kind → phrase and remedy, in the order in which notes are shown."""
_PLACES: Final = {kind: place for place, kind in enumerate(NOTES)}


def often(n: int, of: int) -> str:
    """Phrase for the number of disturbed repeats among those of all strategies."""
    return "in all repeats" if n == of else f"in {n} of {of} repeats of all strategies"


def is_disturbance(item: Note) -> bool:
    """True for a warning that makes a headline provisional."""
    return item.severity == "warning" and item.kind in DISTURBANCES


def disturbances(notes: Sequence[Note]) -> tuple[str, ...]:
    """Reasons, in two words each, that make a headline provisional."""
    return tuple(dict.fromkeys(DISTURBANCES[item.kind] for item in notes if is_disturbance(item)))


def provisional(advice: Advice, notes: Sequence[Note]) -> Advice:
    """Mark the headline of a verdict on disturbed figures."""
    reasons = disturbances(notes)
    if not reasons or advice.kind == "none":
        return advice
    label = PROVISIONAL.format(label=advice.label, reason=", ".join(reasons))
    return replace(advice, headline=f"{label}: {advice.claim}")


def note(kind: str, *strategies: str, **values: object) -> Note:
    """Fill in the phrase of one kind of note.

    Args:
        strategies: strategies concerned, which the phrase may name.
        values: other fields of phrase and remedy.
    """
    phrase, _, remedy = NOTES[kind].partition(" | ")
    fields = {"names": ", ".join(strategies), **values}
    return Note(
        kind=kind,
        severity="warning" if kind in SUBJECTS else "note",
        phrase=phrase.format(**fields),
        remedy=remedy.format(**fields),
        strategies=strategies,
    )


def by_gravity(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Sort notes: the gravest warning of each subject, then the other warnings, then the rest."""
    ordered = sorted(notes, key=lambda item: _PLACES[item.kind])
    gravest: dict[str, Note] = {}
    for item in ordered:
        if item.severity == "warning":
            gravest.setdefault(SUBJECTS[item.kind], item)
    first = {id(item) for item in gravest.values()}
    return (*gravest.values(), *(item for item in ordered if id(item) not in first))
