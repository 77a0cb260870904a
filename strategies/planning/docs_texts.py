"""Prose of `docs/strategies.md`: what a person should know of each strategy and knob before choosing it.

An entry of the registry needs one here of the same name; a test says which is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prose of a strategy, in the symbols of the page.

    Attributes:
        payload: what moves in a step.
        memory: where variables and slots lie.
        choose: when to choose it.
        avoid: when not to.
    """

    payload: str
    memory: str
    choose: str
    avoid: str


_ALL_OF_IT = "every replica owns all variables and slots"
_SERVED = (
    "servers hold all that steps change once; workers hold what a step reads, while it reads it, and a copy "
    "of what no step changes"
)
_PUSH_PULL = (
    "a worker pulls what other tasks serve, once for each of its replicas, and pushes its gradients for it "
    "once, with ids for rows"
)
_IN_PARTS = f"{_PUSH_PULL}; parts move as much as their variable"

STRATEGIES: Mapping[str, Text] = {
    "single": Text(
        payload="0",
        memory="one copy of everything",
        choose="as the baseline: what one device does, on the whole global batch",
        avoid="where more than one device is to be used: it runs one worker with one replica",
    ),
    "none": Text(
        payload="0",
        memory=_ALL_OF_IT,
        choose="as a control: its rate is the ceiling of what any communication can reach",
        avoid="for training: replicas drift apart, and it must fail the check",
    ),
    "ps": Text(
        payload=f"{_PUSH_PULL}; task 0 sends (N − R)·S and receives (W − 1)·S",
        memory=f"task 0 holds all; {_SERVED}",
        choose="for few workers, large tables with sparse gradients, or workers that should not wait for "
        "each other (`sync=false`, `staleness`, `backup`)",
        avoid="for dense models on many workers: one task's link carries everything",
    ),
    "ps-load-balancing": Text(
        payload=f"{_PUSH_PULL}; tasks share what one server would carry, as evenly as whole variables allow",
        memory=f"each task holds about 1/W; {_SERVED}",
        choose="in place of `ps` wherever there are several variables of similar size",
        avoid="where one variable is larger than the rest together: it stays on one task; use `sharded-ps`",
    ),
    "all-reduce": Text(
        payload="dense: a ring in which each replica sends 2(N − 1)/N·S, or with `transport=tcp` each worker "
        "2(W − 1)/W·S; sparse: each replica's rows, padded to the step's longest, go to all others, "
        "(N − 1)·rows·(row + 8 bytes), or with `transport=tcp` each worker's as many as they are, "
        "(W − 1)·rows·(row + 8 bytes)",
        memory=_ALL_OF_IT,
        choose="for dense models: a replica's bytes hardly grow with N, and buckets overlap with backward",
        avoid="for large tables with sparse gradients, whose rows all replicas get, or where a copy of all "
        "slots is too much memory",
    ),
    "hierarchical-all-reduce": Text(
        payload="each worker sends 2(W − 1)/W·S however many replicas it has; what its replicas tell each "
        "other stays inside",
        memory=_ALL_OF_IT,
        choose="in place of `all-reduce` for workers of several replicas, on a network slower than memory",
        avoid="with one replica per worker, where it is `all-reduce`",
    ),
    "local-sgd": Text(
        payload="each replica sends 2(N − 1)/N·S in every `period`-th step and nothing between, 2(N − 1)/N·S/"
        "`period` on average, of which the prediction is rounded per link; tables whole, sums in every step",
        memory=f"{_ALL_OF_IT}; slots stay apart, trainable variables and forward state are averaged",
        choose="on a slow network, for models that bear replicas going apart for some steps",
        avoid="where a run must compute what one device computes (but for `period=1` and plain descent), or "
        "where tables are much larger than the rows that a period of steps looks up",
    ),
    "parallax": Text(
        payload="dense: as `all-reduce` with `transport=ring`; sparse: as `ps-load-balancing`",
        memory="servers hold what has sparse gradients once, with its slots; every replica owns the rest",
        choose="for models with large looked-up tables beside dense layers: only rows in use travel, and "
        "dense gradients go round the ring",
        avoid="without sparse gradients, where it is `all-reduce`, or where one branch updates all variables "
        "(a `LossScaleOptimizer`): it is refused by name",
    ),
    "partitioned-ps": Text(
        payload=_IN_PARTS,
        memory=f"parts are placed one by one, so that tasks hold nearly the same; {_SERVED}",
        choose="where variables are few and large: their parts balance servers that whole variables do not",
        avoid="where updates need whole variables (they stay whole), or variables are many and small: more "
        "parts, more messages",
    ),
    "uneven-partitioned-ps": Text(
        payload=_IN_PARTS,
        memory=f"as `partitioned-ps`; {_SERVED}",
        choose="to see what uneven parts cost, or for lengths whose smallest divisor is large",
        avoid="where even parts exist: they balance better",
    ),
    "sharded-ps": Text(
        payload=f"{_IN_PARTS}; every task carries about 1/W of it",
        memory=f"each task holds near 1/W of every large variable; {_SERVED}",
        choose="for large dense variables on parameter servers: all links carry the same",
        avoid="where variables have fewer rows than there are tasks, or are smaller than `min_bytes`: those "
        "stay whole",
    ),
    "partitioned-all-reduce": Text(
        payload="as `all-reduce`, in a collective for each part",
        memory=_ALL_OF_IT,
        choose="where one large tensor dominates: its parts travel at the same time",
        avoid="where tensors are many: buckets of whole ones need fewer messages",
    ),
    "random-axis-partitioned-all-reduce": Text(
        payload="as `all-reduce`, in a collective for each part",
        memory=_ALL_OF_IT,
        choose="to explore what the axis of a cut changes; sparse gradients are cut along axis 0",
        avoid="where a plan should be the same for every seed: use `partitioned-all-reduce`",
    ),
    "sharded-update": Text(
        payload="each replica sends (N − 1)/N·S of gradients to owners and as much of new values to all; "
        "shares that are not equally large travel in the length of the largest. Where all updates read all "
        "gradients (clipping by a global norm), these go to all, 2(N − 1)/N·S. Sparse: rows go to all as "
        "under `all-reduce`, and new values of the whole table too",
        memory="every replica has all variables, and 1/N of the slots",
        choose="where slots are too much memory for every replica (Adam has two for each variable), or "
        "updates take time: each replica makes 1/N of them",
        avoid="for large tables with sparse gradients, which travel whole in every step; where an update "
        "reads all of its variable (a norm of it), one replica makes it",
    ),
    "fully-sharded": Text(
        payload="as `sharded-update`: (N − 1)/N·S of values before forward reads them, and as much of "
        "gradients to owners; tables travel whole, whatever rows a step looks up",
        memory="each replica has 1/N of variables and slots between steps; within a step it has whole values "
        "besides, all of them from forward to backward",
        choose="where variables and slots take more memory than workers can spare between steps, as where "
        "several models share them; at its largest a step needs as much as one of `sharded-update`",
        avoid="where memory allows `sharded-update`, whose steps begin without waiting for values, or for "
        "large tables with sparse gradients; every replica keeps what a step reads after its update too",
    ),
    "robust-ps": Text(
        payload="as `ps`, with one vector of all dense gradients from each worker; with `servers` every "
        "worker pulls from each of these and pushes to each",
        memory=f"task 0 holds all, and W gradients while it combines them; {_SERVED}; with `servers` each of "
        "these holds all",
        choose="where workers may be wrong: broken memory, bad data, or somebody who lies, see "
        "[Faulty workers](robust.md); with `servers` and `lying` where servers may be",
        avoid="where all workers are sound: `ps` sends as much and waits for no rule",
    ),
    "robust-all-reduce": Text(
        payload="W(W − 1)·S: every worker gathers the gradients of all",
        memory=f"{_ALL_OF_IT}, and W gradients while it combines them",
        choose="as `robust-ps`, where there is no server to trust",
        avoid="for many workers or large models: what it sends and combines grows with W²",
    ),
    "tpu-replicate": Text(
        payload="as `all-reduce` by rings of all replicas; with `reshard` also what puts variables together "
        "after a loop, once for `steps_per_loop` steps",
        memory=f"{_ALL_OF_IT}; with `reshard`, 1/N of those that can be cut while a loop runs",
        choose="for what a step comes to as one program over TPU cores, and what resharding saves and sends; "
        "emulated on other devices, see [TPUs](tpu.md)",
        avoid="for large tables, whose gradients are dense here, for batches that are no multiple of the "
        "replicas, or for rates of TPUs by its emulation; it is run on TPU devices of one host, and "
        "nothing of it has run on a TPU yet",
    ),
    "tf-one-device": Text(
        payload="0",
        memory="one copy of everything",
        choose="as a baseline: what TensorFlow itself does on one device",
        avoid="where more than one device is to be used",
    ),
    "tf-mirrored": Text(
        payload="0 between workers: all replicas are in one process",
        memory=_ALL_OF_IT,
        choose="as a rival for one worker with several replicas",
        avoid="for more than one worker: it is skipped, with the reason",
    ),
    "tf-central-storage": Text(
        payload="0 between workers: all replicas are in one process",
        memory="one copy of everything, in the worker's own memory",
        choose="as a rival of `ps` for one worker with several replicas",
        avoid="for more than one worker, or where replicas assign state (BatchNormalization, dropout): it is "
        "skipped, with the reason; of metrics, what was counted before counts once for each replica",
    ),
    "tf-multi-worker-mirrored": Text(
        payload="as `all-reduce`, in packs of `bytes_per_pack`; forward state is not merged",
        memory=_ALL_OF_IT,
        choose="as the rival of `all-reduce`, in the same workers on equal terms",
        avoid="for several CPU replicas per worker: it is skipped, with the reason",
    ),
    "tf-parameter-server": Text(
        payload=f"{_PUSH_PULL}; forward state too",
        memory=f"{_SERVED}; worker 0 also holds the batches of all",
        choose="as the rival of asynchronous servers (`sync=false`), with TensorFlow's coordinator",
        avoid="where shares of a batch are unequal, or for several CPU replicas per worker: it is skipped",
    ),
    "tf-tpu": Text(
        payload="0 between workers: TPU devices of one host sum gradients over their own links",
        memory=_ALL_OF_IT,
        choose="as the rival on a TPU slice of one host; nothing of it has run on a TPU, see [TPUs](tpu.md)",
        avoid="on other devices, slices of several hosts, or for sparse gradients: it is skipped, with the "
        "reason",
    ),
}

KNOBS: Mapping[str, str] = {
    "accumulate": "micro-batches of each replica, one after the other, before all synchronise once",
    "bucket_size": "with `pre=bucketing`: workers in a bucket; 2 if left out",
    "bucket_bytes": "most that shares a bucket; what has half of it or more is alone; for `chunk_size`",
    "bytes_per_pack": "TensorFlow closes a pack of gradients once it holds more; 0 makes one of all",
    "backup": "an update waits for W − `backup` workers, late contributions are dropped; statistical",
    "chunk_size": "variables in a bucket, whose gradients travel together",
    "communication": "TensorFlow's implementation of collectives",
    "compressor": "of dense gradients on their way, see [Compressors](#compressors); bounded",
    "compressor_levels": "of `qsgd`",
    "compressor_rank": "of `powersgd`",
    "compressor_ratio": "of `topk`",
    "cross_device_ops": "TensorFlow's way of summing over the replicas of a worker",
    "device_loop": "of `tpu-replicate`: cores make the loop by themselves, in place of the host",
    "fused_update": "optimizers' small operations become TensorFlow's kernels of gradient descent, momentum, "
    "Adam and AMSGrad, where these compute the same",
    "f": "workers that a rule must withstand; as many as it can if left out",
    "iterations": "of `geometric-median` (8 if left out) and `centered-clipping` (1)",
    "local_proxy_variable": "a worker reads a dense variable once per step, for all of its replicas",
    "lying": "of `servers`, the last ones, which tell the opposite of what they hold",
    "m": "of `multi-krum`: gradients that its mean is of; W − f − 2 if left out",
    "matmul": "of `tpu-replicate` and `tf-tpu`: in what TPU devices multiply matrices of float32; `bfloat16` "
    "is TensorFlow's own default, and differs from the reference by more than rounding",
    "max_shards": "a variable that would need more parts stays whole",
    "merge_rows": "rows of sparse gradients with equal ids are summed before the update. Fewer rows travel, "
    "but an optimizer that squares or clips rows (Adam, Adagrad, `clipnorm`) takes another step than the one "
    "written. Where the sum changes nothing (SGD, momentum), rows that travel are summed in any case. Always "
    "true for `robust-ps`, `robust-all-reduce` and `tpu-replicate`",
    "min_bytes": "a smaller variable stays whole",
    "nu": "of `geometric-median`: distance below which a gradient gets no more weight; 1e-6 if left out",
    "period": "steps from one average of variables to the next; the first step ends with one",
    "pre": "what comes before a rule: means of neighbours, or of buckets",
    "reshard": "of `tpu-replicate`, emulated: variables lie in parts between iterations, and whole after a "
    "loop",
    "rule": "by which gradients are combined, see [Faulty workers](robust.md)",
    "seed": "of the draws of axes",
    "servers": "of `tf-parameter-server`: workers that have a server beside them, the first ones; all if "
    "left out. Of `robust-ps`: the first workers, each of which serves all variables; workers take the "
    "median",
    "staleness": "a worker may be so many steps ahead of the slowest; statistical",
    "steps_per_loop": "of `tpu-replicate`: most steps in one run of its loop",
    "sync": "false: each worker's gradients are applied at once, nobody waits; statistical",
    "sync_batch_norm": "BatchNormalization takes mean and variance of all replicas' examples, as one device "
    "does on the whole batch; they and their gradients are payload; layers with "
    "`synchronized=True` do so without it",
    "tau": "of `centered-clipping`: the norm above which a difference is clipped; 1 if left out",
    "transport": "`tcp`: a ring of the workers' own, in which the gradients of a worker's replicas are "
    "summed first, and encodings that cannot be summed travel one by one; "
    "`ring`, `nccl`: TensorFlow's collectives; `auto`: `tcp` between CPU hosts, `nccl` between GPUs "
    "(`ring` where replicas share one), else what "
    "TensorFlow chooses. What the chosen one does not carry takes `auto`: half precision by `tcp`, "
    "other encodings by `ring` or `nccl`, rows by these, averages of variables and statistics of batches "
    "by all. Not `nccl` for `sharded-update` and `fully-sharded`, whose owners begin sums in orders of "
    "their own",
    "variant": "of `bulyan`: rounds as in the paper, or two less as in AggregaThor",
}
