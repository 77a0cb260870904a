"""Target of a step's gradients: the scalar that a gradient call differentiates, without its loss scale."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from strategies.capture.hooks import overriding_classes, replaced

PREFIX = "gradient_target"


@dataclass(slots=True)
class TargetRecorder:
    """Collects the target of each gradient call, and which loss a loss scale was applied to.

    Attributes:
        targets: gradient call → node of its target, where that is a loss.
    """

    targets: dict[int, str] = field(default_factory=dict)
    # With the scaled tensor itself, for ids of tensors that are gone are given anew.
    _scaled: dict[int, tuple[object, object]] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hook every Keras `Optimizer.scale_loss` for the duration."""
        with ExitStack() as hooks:
            for owner in overriding_classes(keras.optimizers.Optimizer, "scale_loss"):
                hooks.enter_context(replaced(owner, "scale_loss", self._scale_hook))
            yield

    def begin(self) -> None:
        """Start a trace."""
        self.targets.clear()
        self._scaled.clear()

    def record(self, call: int, target: object, weights: object) -> None:
        """Remember what a gradient call differentiates: the sum of all that it is given.

        Args:
            weights: factors of the target's elements, with which they add up to no loss of the step's own.
        """
        loss = self.loss_of(target, weights)
        if loss is not None:
            with tf.name_scope(""):
                self.targets[call] = tf.identity(loss, name=f"{PREFIX}/{call}").op.name

    def loss_of(self, target: object, weights: object) -> tf.Tensor | None:
        """The scalar that a gradient call differentiates, None where it is no loss; see `record`."""
        parts = [self._unscaled(part) for part in tf.nest.flatten(target) if part is not None]
        losses = [part for part in parts if isinstance(part, tf.Tensor) and part.dtype.is_floating]
        if weights is not None or len(losses) < len(parts):
            return None
        with tf.name_scope(""):
            sums = [tf.cast(tf.reduce_sum(loss), losses[0].dtype) for loss in losses]
            return sums[0] if len(sums) == 1 else tf.add_n(sums)

    def _scale_hook(self, scale_loss: Callable[..., object]) -> Callable[..., object]:
        def hooked(optimizer: keras.optimizers.Optimizer, loss: object) -> object:
            scaled = scale_loss(optimizer, loss)
            if scaled is not loss:
                self._scaled[id(scaled)] = (scaled, loss)
            return scaled

        return hooked

    def _unscaled(self, part: object) -> object:
        while id(part) in self._scaled:
            _, part = self._scaled[id(part)]
        return part
