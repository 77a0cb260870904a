"""Loops over steps as frames, built variable by variable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strategies.ir.graph import Attr, DType, Node, after
from strategies.ir.tensor_proto import const
from strategies.numerics import host_loops
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace


@dataclass(slots=True, kw_only=True)
class Frame:
    """Nodes of a loop under construction; `prefix` is also the name of the frame."""

    prefix: str
    device: str
    nodes: list[Node] = field(default_factory=list)

    @property
    def pivot(self) -> str:
        return f"{self.prefix}goes_on"

    @property
    def condition(self) -> str:
        return f"{self.prefix}condition"

    def enter(self, name: str, ref: str, dtype: DType, *, device: str | None = None) -> str:
        return self._entered(name, ref, dtype, is_constant=True, device=device)

    def variable(self, name: str, first: str, dtype: DType) -> tuple[str, str]:
        """Add a loop variable; return its value at the condition and in an iteration."""
        enter = self._entered(f"{name}/first", first, dtype, is_constant=False)
        merge, switch = f"{self.prefix}{name}/merge", f"{self.prefix}{name}/switch"
        self._add(merge, "Merge", (enter, f"{self.prefix}{name}/next"), N=2, T=dtype)
        self._add(switch, "Switch", (merge, self.condition), T=dtype)
        self._add(f"{self.prefix}{name}/value", "Identity", (f"{switch}:1",), T=dtype)
        return merge, f"{self.prefix}{name}/value"

    def repeat(self, condition: str, first: str) -> None:
        """Repeat while a condition holds; `first` is the value at the start of an iteration."""
        self._add(self.condition, "LoopCond", (condition,))
        self._add(self.pivot, "NoOp", (f"^{first}",))

    def next(self, name: str, ref: str, dtype: DType, waits: Sequence[str] = ()) -> str:
        """Set a variable's next value; return its last one."""
        inputs = (ref, *after(waits))
        self._add(f"{self.prefix}{name}/next", "NextIteration", inputs, T=dtype)
        self._add(f"{self.prefix}{name}/last", "Exit", (f"{self.prefix}{name}/switch",), T=dtype)
        return f"{self.prefix}{name}/last"

    def _entered(
        self, name: str, ref: str, dtype: DType, *, is_constant: bool, device: str | None = None
    ) -> str:
        self._add(
            f"{self.prefix}{name}/enter",
            "Enter",
            (ref,),
            device=device,
            T=dtype,
            frame_name=self.prefix.encode(),
            is_constant=is_constant,
            parallel_iterations=10,
        )
        return f"{self.prefix}{name}/enter"

    def _add(
        self, name: str, op: str, inputs: Sequence[str], *, device: str | None = None, **attrs: Attr
    ) -> None:
        own = self.device if device is None else device
        self.nodes.append(Node(name=name, op=op, inputs=tuple(inputs), attrs=attrs, device=own))


_COUNT, _INT32 = "step", DType("int32")


class StepLoop:
    """Loop over steps: it counts them, keeps all losses, and the last value of every other result."""

    def __init__(self, prefix: str, device: str) -> None:
        self.frame = Frame(prefix=prefix, device=device)
        self._step = ""

    def begin(self, batches: str, dtype: DType) -> str:
        """Begin a loop over batches [n_steps, …]; return the number of an iteration's step."""
        frame = self.frame
        limit = self.spliced(host_loops.n_steps, "limit", [(batches, dtype)])
        zero = const(f"{frame.prefix}first_step", _INT32, 0, device=frame.device)
        frame.nodes.append(zero)
        at_condition, self._step = frame.variable(_COUNT, zero.name, _INT32)
        entered = frame.enter("limit", limit, _INT32)
        goes_on = self.spliced(host_loops.goes_on, "goes_on_if", [(at_condition, _INT32), (entered, _INT32)])
        frame.repeat(goes_on, self._step)
        return self._step

    def output(self, name: str, ref: str, dtype: DType, *, is_loss: bool) -> str:
        """Value of an output after the loop: all losses, or the last value of another result."""
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
        """End the loop; return the number of steps."""
        following = self.in_step(host_loops.next_step, "next_step", [(self._step, _INT32)])
        return self.frame.next(_COUNT, following, _INT32, waits)

    def in_step(self, fn: Callable[..., object], name: str, inputs: Sequence[tuple[str, DType]]) -> str:
        return self.spliced(fn, name, inputs, waits=[self.frame.pivot])

    def spliced(
        self,
        fn: Callable[..., object],
        name: str,
        inputs: Sequence[tuple[str, DType]],
        *,
        waits: Sequence[str] = (),
    ) -> str:
        frame = self.frame
        snippet = trace(fn, tuple(TensorSpec(dtype=dtype) for _, dtype in inputs))
        nodes, (result,) = snippet.splice(
            f"{frame.prefix}{name}/", [ref for ref, _ in inputs], device=frame.device, control=waits
        )
        frame.nodes += nodes
        return result
