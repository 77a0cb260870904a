"""State for the next step does not overtake reads of this one."""

from strategies.numerics.compressors import StateSpec
from strategies.passes.replicate.state_variables import StateVariable


def test_a_value_is_kept_only_after_the_one_before_has_been_read() -> None:
    spec = StateSpec(name="before", dims=(3,), dtype="float")
    state = StateVariable.of(spec, "fault/before", path="fault/before", rank=0, device="", owners=(0,))
    # A gradient of this step, which takes nothing of the one that was kept.
    assert state.keep("gradient").inputs == (state.variable.handle, "gradient", f"^{state.value}")
