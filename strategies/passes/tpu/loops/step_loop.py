"""A loop over steps in a frame: it counts them, keeps all losses, and of other results the last ones."""

from collections.abc import Callable, Sequence

from strategies.ir.graph import DType
from strategies.numerics import host_loops
from strategies.passes.tpu.loops.frames import Frame
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

_COUNT, _INT32 = "step", DType("int32")


class StepLoop:
    """A loop as it is built: `begin` it, give it outputs, `end` it.

    Attributes:
        frame: its nodes.
    """

    def __init__(self, prefix: str, device: str) -> None:
        self.frame = Frame(prefix=prefix, device=device)
        self._step = ""

    def begin(self, batches: str, dtype: DType) -> str:
        """Begin a loop over as many steps as there are batches.

        Args:
            batches: [n_steps, …], of this type.
        Returns:
            the number of an iteration's step.
        """
        frame = self.frame
        limit = self.spliced(host_loops.n_steps, "limit", [(batches, dtype)])
        zero = constant(f"{frame.prefix}first_step", 0, _INT32, frame.device)
        frame.nodes.append(zero)
        at_condition, self._step = frame.variable(_COUNT, zero.name, _INT32)
        entered = frame.enter("limit", limit, _INT32)
        goes_on = self.spliced(host_loops.goes_on, "goes_on_if", [(at_condition, _INT32), (entered, _INT32)])
        frame.repeat_while(goes_on)
        frame.begins_at(self._step)
        return self._step

    def output(self, name: str, ref: str, dtype: DType, *, is_loss: bool) -> str:
        """What something that a step gives is after the loop: all losses, or the last of something else."""
        first = trace(
            host_loops.no_losses if is_loss else host_loops.no_result, (), dtype=dtype_number(dtype)
        )
        nodes, (nothing,) = first.splice(f"{self.frame.prefix}{name}/nothing/", [], device=self.frame.device)
        self.frame.nodes += nodes
        _, value = self.frame.variable(name, nothing, dtype)
        if is_loss:
            ref = self.in_step(host_loops.with_loss, f"{name}/appended", [(value, dtype), (ref, dtype)])
        return self.frame.next(name, ref, dtype)

    def end(self, waits: Sequence[str]) -> str:
        """End the loop; each next iteration waits for these nodes.

        Returns:
            the number of steps.
        """
        following = self.in_step(host_loops.next_step, "next_step", [(self._step, _INT32)])
        return self.frame.next(_COUNT, following, _INT32, waits)

    def in_step(self, fn: Callable[..., object], name: str, inputs: Sequence[tuple[str, DType]]) -> str:
        """As `spliced`, in each iteration."""
        return self.spliced(fn, name, inputs, waits=[self.frame.pivot])

    def spliced(
        self,
        fn: Callable[..., object],
        name: str,
        inputs: Sequence[tuple[str, DType]],
        *,
        waits: Sequence[str] = (),
    ) -> str:
        """The one result of a function of tensors, which are given by reference and type."""
        frame = self.frame
        snippet = trace(fn, tuple(TensorSpec(dtype=dtype) for _, dtype in inputs))
        nodes, (result,) = snippet.splice(
            f"{frame.prefix}{name}/", [ref for ref, _ in inputs], device=frame.device, control=waits
        )
        frame.nodes += nodes
        return result
