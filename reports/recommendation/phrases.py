"""Fixed phrases of verdicts: an answer with its certainty, then reasons and warnings, one sentence each."""

from __future__ import annotations

from typing import Final

from harness.records.comparison import MIN_REPEATS_INTERVAL

# Headlines.
FASTEST: Final = "{leader} is fastest: {ratio} the rate of {second}, the next."
FASTEST_BEFORE_BASELINE: Final = "{leader} is fastest: {ratio} the rate of {second}, the baseline and next."
NOTHING_PAYS: Final = "{leader}, the baseline, is fastest: nothing else pays off here."
NO_DIFFERENCE: Final = "No significant difference between {names} ({counts})."
NO_INTERVAL: Final = "No winner declared: {leader} has the highest figure, but n={n} gives no interval."
ONLY_ONE: Final = "No comparison: only {leader} was measured and shown to compute the right thing."
NO_CANDIDATE: Final = "No winner: no strategy was both measured and shown to compute the right thing."
UNDER_FAULTS: Final = "With faults no strategy computes what one device would; see {metrics} under faults."
UNDER_FAULTS_UNMEASURED: Final = (
    "With faults no strategy computes what one device would; set measure.evaluate to see how good "
    "models become."
)

# Reasons.
RUNS_AT: Final = "{name} runs at {ratio} the rate of {other}."
BEST_OF_OTHERS: Final = "Best of the others is {name}, at {ratio} the rate of {other}."
SENDS_FEWER: Final = "{name} sends {share} fewer bytes than {other}{how}."
SENDS_MORE: Final = "{name} sends {share} more bytes than {other}{how}."
SENDS_TIMES: Final = "{name} sends {share} the bytes of {other}{how}."
BY_PREDICTION: Final = " by prediction"
SENT: Final = "Sent per step, all workers together: {figures}."
SENT_OVER_TCP: Final = "{name} {sent} over TCP ({apart}the predicted payload of {payload})"
SENT_PREDICTED: Final = "{name} {payload} predicted, TCP not measured"
SENT_NOTHING: Final = "{name} nothing"
SENT_UNKNOWN: Final = "{name} not stored"
NOT_DISTINGUISHED: Final = "The test does not distinguish {first} and {second} (p={p})."
NOT_DISTINGUISHED_EITHER_WAY: Final = (
    "The test does not distinguish {first} and {second} (p={p}, corrected for the {n} pairs of this table "
    "p={corrected})."
)
DISTINGUISHED_ALONE: Final = (
    "Alone {first} and {second} would differ (p={p}); corrected for the {n} pairs of this table they do not "
    "(p={corrected})."
)

# Warnings, each with its remedy.
MORE_REPEATS: Final = f"Run at least {MIN_REPEATS_INTERVAL} repeats for an interval."
TOO_FEW_REPEATS: Final = (
    f"Too few repeats of {{names}} for an interval: run at least {MIN_REPEATS_INTERVAL} of each."
)
REPEATS_TO_DECIDE: Final = "About {n} repeats would distinguish {first} and {second}, by a rough estimate."
TOO_MANY_TO_DECIDE: Final = (
    "More than {n} repeats would be needed to distinguish {first} and {second}, by a rough estimate."
)
EMULATED: Final = (
    "Rates are those of processors that emulate TPU cores: on TPUs the order may be another one."
)
CANNOT_WIN: Final = "{how}, but cannot win: {names}."
FASTER: Final = "Faster"
FASTER_WITHOUT_INTERVAL: Final = "Faster by figures without an interval"
NOT_DIFFERENT: Final = "As fast by these repeats"
MEASURED: Final = "Measured"
WITHOUT_RANK: Final = "Without a result to rank: {names}."
WITHOUT_RESULT: Final = "Without a result: {names}."
NO_ANSWER: Final = {
    "fastest": "compare.goal is fastest, but fewer than two strategies were measured and shown to compute "
    "the right thing; named is the fastest.",
    "cheapest": "compare.goal is cheapest, but fewer than two strategies that may win have a price; give "
    "cluster.price_per_hour. Named is the fastest.",
    "network": "compare.goal is network, but fewer than two strategies that may win have sent anything that "
    "is known; named is the fastest.",
}

# Answers for other goals.
CHEAPEST: Final = "Cheapest: {leader}, at {cost}."
CHEAPEST_LEVEL: Final = (
    "Cheapest: no significant difference between {names} ({counts}); {leader} costs {cost}."
)
CHEAPEST_NO_INTERVAL: Final = "Cheapest by its figure: {leader}, at {cost}, but n={n} gives no interval."
LEAST_NETWORK: Final = "Least network: {leader}, {figure}."
HIGHEST_RATE_TOO: Final = "It has the highest rate too."
AT_RATE: Final = "It runs at {ratio} the rate of {fastest}, the highest."
BYTES_LEVEL: Final = "No significant difference in bytes: {names}."
BYTES_LEVEL_BY_BOUND: Final = (
    "No significant difference in bytes: {names}; of {bounded} only an upper bound is known."
)
BYTES_LEVEL_TOO_FEW: Final = (
    f"No significant difference in bytes: {{names}}; run at least {MIN_REPEATS_INTERVAL} repeats of each."
)
SEND_NOTHING: Final = "Nothing is sent by {names}."

# Links of several rates.
OVERTAKES: Final = "{slower}, {name} overtakes {other} (measured at {low} and {high}, n={n})."
MAY_OVERTAKE: Final = (
    "{slower}, {name} may overtake {other}: no significant difference at {ends} (measured at {low} and "
    "{high}, n={n})."
)
BELOW: Final = "Below about {rate}"
SOMEWHERE_ABOVE: Final = "Somewhere above {rate}"
NONE_OVERTAKES: Final = "No strategy overtakes {best} between the rates that were measured."
NONE_OVERTAKES_PERHAPS: Final = (
    "By its figures no strategy overtakes {best} between the rates that were measured: no significant "
    "difference at {ends}."
)
NONE_OVERTAKES_ELSEWHERE: Final = "Between the other rates no strategy overtakes the best by its figures."
UNKNOWN_WITH_ONE: Final = (
    "Between {low} and {high} it is unknown whether the best changes: only {name} was measured and shown to "
    "compute the right thing at both; measure another."
)
UNKNOWN_WITH_NONE: Final = (
    "Between {low} and {high} it is unknown whether the best changes: no strategy was measured and shown to "
    "compute the right thing at both; measure two."
)
UNKNOWN_WITHOUT_BEST: Final = (
    "Between {low} and {high} it is unknown whether the best changes: measure {best}, the best at {here}, at "
    "{there} too, and verify it."
)

REASONS_NOT_TO_WIN: Final = {
    "control": "a control: the rate if communication cost nothing",
    "not-equivalent": "NOT equivalent to the reference",
    "beyond-bound": "BEYOND what its compressors may lose",
    "undecidable": "undecidable: rounding hides whether it computes the right thing",
    "not-checked": "not checked for equivalence",
    "statistical": "of a class that is not held to equivalence",
}
"""Kind of mark → reason why a strategy with it cannot win."""
