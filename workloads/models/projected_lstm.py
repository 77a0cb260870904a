"""An LSTM whose output is projected to fewer numbers before it comes back as input."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def projected_lstm(units: int, width: int, *, name: str) -> "keras.layers.RNN":
    """Return a layer over [batch, steps, features] that gives [batch, steps, width].

    Args:
        units: of the cell's state.
        width: of its output.
        name: of the layer.
    Source:
        Sak et al. 2014, arXiv:1402.1128, section 2.2, without peepholes and without a second projection.
    """
    import keras

    # Keras has no types.
    class Cell(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="cell")
            self.state_size = [width, units]
            self.output_size = width

        def build(self, shape: tuple[int, ...]) -> None:
            self.kernel = self.add_weight((shape[-1] + width, 4 * units), "glorot_uniform", name="kernel")
            self.bias = self.add_weight((4 * units,), "zeros", name="bias")
            self.projection = self.add_weight((units, width), "glorot_uniform", name="projection")
            self.built = True

        def call(
            self, inputs: keras.KerasTensor, states: list[keras.KerasTensor]
        ) -> tuple[keras.KerasTensor, list[keras.KerasTensor]]:
            ops = keras.ops
            output, state = states
            gates = ops.matmul(ops.concatenate([inputs, output], axis=1), self.kernel) + self.bias
            admit, keep, candidate, show = ops.split(gates, 4, axis=1)
            # What is kept at first is nearly all, as the paper's offset of one.
            state = ops.sigmoid(keep + 1.0) * state + ops.sigmoid(admit) * ops.tanh(candidate)
            output = ops.matmul(ops.sigmoid(show) * ops.tanh(state), self.projection)
            return output, [output, state]

    return keras.layers.RNN(Cell(), return_sequences=True, name=name)
