"""Events of a step on GPUs, from what TensorFlow 2.21 writes of it, and the split of its time."""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.measure.traced_step import trace_document
from harness.worker.jobs import profile_step
from harness.worker.session import trace_events
from harness.worker.session.step_trace import sees_no_kernels, summary, together
from harness.worker.session.timed_loop import ProcessFaults

HOST_CPU = "/job:worker/replica:0/task:0/device:CPU:0"
HOST_GPU = "/job:worker/replica:0/task:0/device:GPU:0"
ORIGIN_US = time.time_ns() // 1000
SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNEL_DETAILS = "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1 occ_pct:100"
COPY_DETAILS = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"


class Step:
    """Metadata of a step as TensorFlow writes it, times in microseconds from its start.

    Rows were compared with those that TensorFlow 2.21's `ConvertGpuXSpaceToStepStats` makes of kernels,
    copies, memory that is set, the tracer's own work and waits for a GPU.
    """

    def __init__(self):
        self.metadata = tf.compat.v1.RunMetadata()
        self._rows = {}

    def _add(self, device, name, label, start, length):
        if device not in self._rows:
            self._rows[device] = self.metadata.step_stats.dev_stats.add(device=device)
        return self._rows[device].node_stats.add(
            node_name=name,
            timeline_label=label,
            all_start_micros=ORIGIN_US + start,
            op_end_rel_micros=length,
            all_end_rel_micros=length,
        )

    def host(self, start, length, op="MatMul", name=None, device=HOST_GPU):
        """Operation that an executor runs or launches, in nanoseconds too."""
        name = name or f"node_{start}"
        node = self._add(device, name, f"[CUDA_Host 4B 4B] {name} = {op}(a, b)", start, length)
        node.all_start_nanos, node.all_end_rel_nanos = 1000 * (ORIGIN_US + start), 1000 * length

    def kernel(
        self, start, length, kernel="ampere_sgemm_128x64_tn", name="dense/MatMul:MatMul", stream=13, gpu=0
    ):
        for row in (f"stream:{stream}", "stream:all"):
            self._add(f"/device:GPU:{gpu}/{row}", name, f"{kernel} {KERNEL_DETAILS}", start, length)

    def sum(self, start, length, gpu=0):
        self.kernel(start, length, SUM, "ncclAllReduce", stream=20, gpu=gpu)

    def copy(self, start, length, kind="MemcpyH2D", gpu=0):
        for row in (f"stream:14<{kind}>", "memcpy"):
            self._add(f"/device:GPU:{gpu}/{row}", kind, f"{kind} {COPY_DETAILS}", start, length)

    def row(self, row, name, start, length):
        """Another row of a GPU."""
        label = "ThreadId 7" if row == "sync" else name
        self._add(f"/device:GPU:0/{row}", name, label, start, length)


def trace_of(*steps, moved=(), waits=(), calls=()):
    """The trace of a worker, whose step is all of these."""
    tracer = SimpleNamespace(seen=[step.metadata for step in steps], moved=list(moved), begin=lambda: None)
    session = SimpleNamespace(
        step=lambda feed: None,
        traced=lambda: contextlib.nullcontext(tracer),
        waits=frozenset(waits),
        calls=frozenset(calls),
    )
    return profile_step.trace(session, [[], []], ProcessFaults())


def split_of(trace, *others):
    """Microseconds of computing, communication, copies, host and waiting of the first worker."""
    times = summary(together([trace, *others]))
    moved_s = times.transfer_s[0] - times.copy_s[0]
    parts_s = (times.compute_s[0], moved_s, times.copy_s[0], times.host_s[0], times.wait_s[0])
    return [1e6 * seconds for seconds in parts_s]


def expected(n_us, *kinds):
    """The same, by looking at each microsecond.

    Args:
        kinds: starts and lengths of each kind, the first ones before the others.
    """
    is_late = np.zeros(n_us, dtype=bool)
    parts = []
    for spans in kinds:
        there = np.zeros(n_us, dtype=bool)
        for start, length in spans:
            there[start : start + length] = True
        parts.append(int((there & ~is_late).sum()))
        is_late |= there
    return parts


def close(parts):
    return pytest.approx(parts, rel=0.02, abs=0.1)


def test_a_step_ran_on_the_devices_of_its_operations_and_kernels():
    step, beside = Step(), Step()
    step.host(0, 5, device=HOST_CPU)
    step.host(0, 5)
    step.kernel(3, 2)
    step.copy(3, 2)
    beside.kernel(4, 1, gpu=1)
    beside.metadata.step_stats.dev_stats.add(device="/device:GPU:2/stream:9")
    ran = trace_events.devices([step.metadata, beside.metadata])
    assert ran == ("/device:GPU:0", "/device:GPU:1", HOST_CPU, HOST_GPU)
    assert trace_events.devices([]) == ()


def test_launches_of_short_kernels_are_the_host_s_time():
    """Each of 200 operations is launched in 20 µs and computes for 2 while the next is launched."""
    step = Step()
    launches = [(25 * k, 20) for k in range(200)]
    kernels = [(25 * k + 21, 2) for k in range(200)]
    for k, (launch, kernel) in enumerate(zip(launches, kernels, strict=True)):
        step.host(*launch, name=f"op_{k}")
        step.kernel(*kernel, name=f"op_{k}:Relu")
    step.copy(0, 15)
    step.host(0, 5000, op="_Recv", name="loss/_7", device=HOST_CPU)
    assert split_of(trace_of(step)) == close([400, 0, 15, 3985, 0])
    assert split_of(trace_of(step)) == close(expected(5000, kernels, [], [(0, 15)], launches, []))


def test_a_long_copy_comes_before_kernels_that_follow_each_other():
    step = Step()
    step.host(0, 3950, op="_Send", name="batch", device=HOST_CPU)
    step.copy(20, 3900)
    kernels = [(3930 + 550 * k, 548) for k in range(160)]
    for k, kernel in enumerate(kernels):
        step.host(3930 + 15 * k, 14)
        step.kernel(*kernel)
    times = summary([trace_of(step)])
    assert times.transfer_s == times.copy_s == (pytest.approx(3.9e-3, rel=0.02),)
    assert times.compute_s == (pytest.approx(160 * 548e-6, rel=0.02),)
    assert (times.receiving_s, times.n_transfers, times.received_bytes) == ((0.0,), (0,), None)


def test_kernels_of_two_streams_count_once():
    step = Step()
    step.host(0, 10)
    step.kernel(10, 100)
    step.kernel(60, 100, stream=17)
    step.copy(120, 80, "MemcpyD2D")
    assert split_of(trace_of(step)) == close([150, 0, 40, 10, 0])


def test_a_sum_of_replicas_waits_for_the_last_and_then_moves():
    """The first worker has its sums 300 and 100 µs before the other."""
    early, late = Step(), Step()
    for step, starts in ((early, (100, 1000)), (late, (400, 1100))):
        step.host(0, 50, op="CollectiveReduceV2", name="sum")
        step.kernel(50, 50)
        for start, end in zip(starts, (600, 1400), strict=True):
            step.sum(start, end - start)
    traces = [trace_of(early), trace_of(late)]
    assert split_of(*traces) == close([50, 200 + 300, 0, 0, 50 + 300 + 100])
    assert split_of(*reversed(traces)) == close([50, 200 + 300, 0, 0, 50])
    assert summary(together(traces)).n_transfers == (2, 2)


def test_a_sum_of_the_replicas_of_one_worker_is_one_transfer():
    step = Step()
    step.host(0, 10)
    step.kernel(0, 100, gpu=0)
    step.sum(100, 200, gpu=0)
    step.sum(200, 100, gpu=1)
    trace = trace_of(step)
    assert split_of(trace) == close([100, 100, 0, 0, 100])
    assert trace.n_transfers == 1


def test_a_collective_without_nccl_moves_from_launch_to_end():
    step = Step()
    step.kernel(0, 10)
    step.host(10, 90, op="CollectiveReduceV2", name="sum")
    assert split_of(trace_of(step)) == close([10, 90, 0, 0, 0])


def test_operations_that_wait_keep_no_host_busy():
    """Only the launches do: 40 µs after the kernel, and 20 while the worker waits for another."""
    step = Step()
    step.kernel(0, 10)
    step.host(10, 100, op="Where", name="where")
    step.row("sync", "cuStreamSynchronize", 30, 60)
    step.host(110, 100, op="QueueDequeueV2", name="token", device=HOST_CPU)
    step.host(150, 20, op="Reshape", device=HOST_CPU)
    step.host(0, 400, op="_HostRecv", name="edge", device=HOST_CPU)
    step.host(0, 400, op="StatefulPartitionedCall", name="call")
    trace = trace_of(step, calls=["call"])
    assert split_of(trace) == close([10, 0, 0, 60, 80])
    assert 1e6 * summary([trace]).step_s[0] == close(400)


def test_memory_that_is_set_computes_and_the_tracer_s_own_work_does_not():
    step = Step()
    step.host(0, 1)
    step.row("stream:", "zeros:ZerosLike", 10, 20)
    step.row("stream:", "Memset", 40, 5)
    step.row("stream:", "BUFFER_FLUSH", 50, 500)
    assert split_of(trace_of(step)) == close([25, 0, 0, 1, 0])


def test_a_compiled_step_is_its_kernels_and_their_launch():
    step = Step()
    step.host(0, 60, op="_XlaRun", name="cluster_0_1/xla_run")
    step.kernel(40, 500, "gemm_fusion_dot_3", "cluster_0_1/xla_run:_XlaRun")
    step.kernel(541, 100, "loop_multiply_fusion", "loop_multiply_fusion")
    assert split_of(trace_of(step)) == close([600, 0, 0, 40, 0])


def test_a_tensor_from_another_worker_is_made_when_its_kernel_ends():
    step = Step()
    step.host(0, 10, name="grad")
    step.kernel(50, 50, name="grad:MatMul", stream=13)
    node = step._add(HOST_GPU, "RecvTensor", f"[4B] edge_1_grad from {HOST_GPU} to {HOST_CPU}", 20, 180)
    node.output.add().tensor_description.allocation_description.requested_bytes = 4
    trace = trace_of(step)
    assert split_of(trace) == close([50, 100, 0, 10, 30])
    times = summary([trace])
    assert (times.n_transfers, times.received_bytes) == ((1,), (4,))


def test_operations_of_a_step_without_gpus_compute():
    step = Step()
    step.host(0, 10, device=HOST_CPU)
    step.host(10, 10, op="_Recv", name="r", device=HOST_CPU)
    times = summary([trace_of(step)])
    assert times.compute_s == (pytest.approx(20e-6, rel=0.02),)
    assert (times.copy_s, times.host_s) == (None, None)


def test_streams_and_launches_have_rows_of_their_own_in_a_file():
    step = Step()
    step.host(0, 10)
    step.kernel(5, 10, "k" * 900)
    step.copy(5, 10)
    document = trace_document("digits-cnn", [trace_of(step)])["traceEvents"]
    rows = {e["args"]["name"] for e in document if e["name"] == "thread_name"}
    streams = {"GPU:0 stream 13", "GPU:0 stream 14<MemcpyH2D>"}
    assert rows == {"step", "task:0 GPU:0 launches", *streams}
    events = {e["cat"]: e["args"] for e in document if e["ph"] == "X"}
    assert events["copy"] == {"op": "MemcpyH2D", "bytes": 4096}
    assert set("kk") == set(events["compute"]["op"])
    assert len(events["compute"]["op"]) < 900


def test_kernels_are_kept_rather_than_their_launches(monkeypatch):
    monkeypatch.setattr(profile_step, "MAX_EVENTS", 2)
    step = Step()
    step.host(0, 100)
    step.kernel(10, 2)
    step.kernel(20, 3)
    assert [event.kind for event in trace_of(step).events] == ["compute", "compute"]


def test_a_gpu_without_kernels_is_noticed():
    seen, unseen, on_cpu = Step(), Step(), Step()
    seen.host(0, 10)
    seen.kernel(5, 1)
    unseen.host(0, 10)
    on_cpu.host(0, 10, device=HOST_CPU)
    assert not sees_no_kernels([trace_of(seen), trace_of(on_cpu)])
    assert sees_no_kernels([trace_of(seen), trace_of(unseen)])


_N_US = 400
_SPANS = st.lists(
    st.tuples(st.integers(0, _N_US - 50), st.integers(1, 50)),
    min_size=1,
    max_size=12,
    unique_by=lambda s: s[0],
)


@settings(max_examples=60, deadline=None)
@given(kernels=_SPANS, others=_SPANS, sums=_SPANS, copies=_SPANS, launches=_SPANS, waits=_SPANS)
def test_the_split_is_that_of_each_microsecond(kernels, others, sums, copies, launches, waits):
    step = Step()
    for start, length in kernels:
        step.kernel(start, length)
    for start, length in others:
        step.kernel(start, length, "void loop_fusion<float>(int)", "Relu:Relu", stream=17)
    for start, length in sums:
        step.sum(start, length)
    for start, length in copies:
        step.copy(start, length)
    for start, length in launches:
        step.host(start, length)
    for start, length in waits:
        step.host(start, length, op="QueueDequeueV2", device=HOST_CPU)
    split = split_of(trace_of(step))
    assert split == close(expected(_N_US, kernels + others, sums, copies, launches, waits))
