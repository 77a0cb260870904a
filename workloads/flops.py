"""Arithmetic of a training step, estimated from shapes.

A weight that meets one input costs a multiplication and an addition in the forward pass, the same for the
gradient of the input and the same again for its own gradient: 6 operations per weight and position. Biases,
activations and normalisation are left out, being of a lower order.

Source:
    Kaplan et al. 2020, arXiv:2001.08361, section 2.1 (C = 6N).
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

_PER_WEIGHT = 6.0


def dense_flops(n_in: int, n_out: int, *, positions: int = 1) -> float:
    """Return forward and backward operations of a matrix product for one example.

    Args:
        n_in: input features.
        n_out: output features.
        positions: number of uses of the matrix per example (pixels, time steps).
    """
    return _PER_WEIGHT * n_in * n_out * positions


def lstm_flops(n_in: int, units: int, *, steps: int) -> float:
    """Return forward and backward operations of an LSTM layer's four gates for one sequence."""
    return dense_flops(n_in + units, 4 * units, positions=steps)


def attention_flops(width: int, *, sequence: int) -> float:
    """Return forward and backward operations of one layer's attention scores and weighted sums.

    Counts the products of every token with every other, also masked ones, but not the projections.
    """
    return 2 * dense_flops(sequence, width, positions=sequence)


def layer_flops(model: "keras.Model") -> float:
    """Return forward and backward operations of a model's convolutions and dense layers for one example.

    Layers of nested models are not seen. What other layers compute is of a lower order in models of images.
    """
    import keras

    layers = keras.layers
    plain = (layers.Conv1D, layers.Conv2D, layers.Conv3D, layers.DepthwiseConv1D, layers.DepthwiseConv2D)
    flops = 0.0
    for layer in model.layers:
        shape = layer.output.shape if isinstance(layer.output, keras.KerasTensor) else ()
        if isinstance(layer, layers.Dense):
            flops += dense_flops(*layer.kernel.shape, positions=math.prod(shape[1:-1]))
            continue
        if isinstance(layer, plain):
            kernels = [layer.kernel]
        elif isinstance(layer, layers.SeparableConv1D | layers.SeparableConv2D):
            kernels = [layer.depthwise_kernel, layer.pointwise_kernel]
        else:
            continue
        channels = shape[-1 if layer.data_format == "channels_last" else 1]
        n_weights = sum(math.prod(kernel.shape) for kernel in kernels)
        flops += dense_flops(n_weights, 1, positions=math.prod(shape[1:]) // channels)
    return flops
