"""A loop in a frame, built variable by variable."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from strategies.ir.graph import Attr, DType, Node


@dataclass(slots=True, kw_only=True)
class Frame:
    """The nodes of a loop as it is built.

    Attributes:
        prefix: of all their names, and the name of the frame.
        device: of the loop's own nodes.
        pivot: runs once in each iteration, first.
    """

    prefix: str
    device: str
    nodes: list[Node] = field(default_factory=list)

    @property
    def pivot(self) -> str:
        """A node that runs in each iteration, and in none else."""
        return f"{self.prefix}goes_on"

    @property
    def condition(self) -> str:
        """The node that tells whether there is another iteration."""
        return f"{self.prefix}condition"

    def enter(self, name: str, ref: str, dtype: DType, *, device: str | None = None) -> str:
        """What every iteration takes as it is.

        Args:
            device: where it is, the loop's own unless given.
        """
        return self._entered(name, ref, dtype, is_constant=True, device=device)

    def variable(self, name: str, first: str, dtype: DType) -> tuple[str, str]:
        """A variable of the loop.

        Args:
            first: its value before the first iteration.
        Returns:
            its value where the condition is, and in an iteration.
        """
        enter = self._entered(f"{name}/first", first, dtype, is_constant=False)
        merge, switch = f"{self.prefix}{name}/merge", f"{self.prefix}{name}/switch"
        self._add(merge, "Merge", (enter, f"{self.prefix}{name}/next"), N=2, T=dtype)
        self._add(switch, "Switch", (merge, self.condition), T=dtype)
        self._add(f"{self.prefix}{name}/value", "Identity", (f"{switch}:1",), T=dtype)
        return merge, f"{self.prefix}{name}/value"

    def repeat_while(self, ref: str) -> None:
        """Tell what there is another iteration for."""
        self._add(self.condition, "LoopCond", (ref,))

    def begins_at(self, value: str) -> None:
        """Tell by which variable's value an iteration begins."""
        self._add(self.pivot, "NoOp", (f"^{value}",))

    def next(self, name: str, ref: str, dtype: DType, waits: Sequence[str] = ()) -> str:
        """What a variable is in the next iteration.

        Args:
            waits: nodes that run before there is a next one.
        Returns:
            its value after the last one.
        """
        inputs = (ref, *(f"^{each}" for each in waits))
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
