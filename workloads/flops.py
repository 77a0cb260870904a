"""Arithmetic of a training step, estimated from shapes.

A weight that meets one input costs a multiplication and an addition in the forward pass, the same for the
gradient of the input and the same again for its own gradient: 6 operations per weight and position. Biases,
activations and normalisation are left out, being of a lower order.

Source:
    Kaplan et al. 2020, arXiv:2001.08361, section 2.1 (C = 6N).
"""

_PER_WEIGHT = 6.0


def dense_flops(n_in: int, n_out: int, *, positions: int = 1) -> float:
    """Return forward and backward operations of a matrix product for one example.

    Args:
        n_in: input features.
        n_out: output features.
        positions: how many times the matrix is used for one example (pixels, time steps).
    """
    return _PER_WEIGHT * n_in * n_out * positions


def lstm_flops(n_in: int, units: int, *, steps: int) -> float:
    """Return forward and backward operations of an LSTM layer's four gates for one sequence."""
    return dense_flops(n_in + units, 4 * units, positions=steps)
