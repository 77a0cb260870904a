"""Images in TFRecord files, as ImageNet is kept for TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.data.files import DATA
from workloads.errors import WorkloadError

if TYPE_CHECKING:
    import tensorflow as tf

_IMAGE, _LABEL = "image/encoded", "image/class/label"
# Means and deviations of ImageNet's colours, of 255: red, green, blue.
_MEANS = (123.68, 116.78, 103.94)
_DEVIATIONS = (58.39, 57.12, 57.38)
_SHUFFLED = 1024
# The shorter side before a square is cut out of the middle, of the side that is asked for.
_MARGIN = 256 / 224


def image_records(files: Sequence[Path], *, side: int, classes: int, seed: int) -> "tf.data.Dataset":
    """Read examples (image [side, side, 3] float32, label [] int32) without end, in an order of the seed's.

    A record has `image/encoded` (JPEG or PNG) and `image/class/label` (from 1). An image is scaled, cut out
    of the middle and normalised by ImageNet's colours. A record that is none, or a label beyond the classes,
    ends the reading with an error that says so.

    Args:
        classes: labels are 1 to this.
    Raises:
        WorkloadError: no file has a record, and reading would look for one for ever.
    Source:
        Format: TensorFlow's build_imagenet_data.py. Crop and colours: He et al. 2015, arXiv:1512.03385,
        section 3.4 (testing).
    """
    import tensorflow as tf

    if all(path.stat().st_size == 0 for path in files):
        message = f"data must have a record, got empty files alone, as {files[0]}; fetch the data anew"
        raise WorkloadError(message, field=DATA)
    names = tf.constant([str(path) for path in files])
    features = {
        _IMAGE: tf.io.FixedLenFeature([], tf.string),
        _LABEL: tf.io.FixedLenFeature([], tf.int64),
    }
    larger = round(side * _MARGIN)

    def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, features)
        label = parsed[_LABEL]
        within = tf.debugging.Assert(
            (label >= 1) & (label <= classes),
            [f"data has labels beyond the {classes} classes; raise classes; got", label],
        )
        with tf.control_dependencies([within]):
            image = tf.io.decode_image(parsed[_IMAGE], channels=3, expand_animations=False)
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        scaled = tf.cast(tf.math.ceil(size * larger / tf.reduce_min(size)), tf.int32)
        resized = tf.image.resize(image, scaled)
        cut = tf.image.resize_with_crop_or_pad(resized, side, side)
        normal = (cut - tf.constant(_MEANS)) / tf.constant(_DEVIATIONS)
        return tf.ensure_shape(normal, [side, side, 3]), tf.cast(label - 1, tf.int32)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        words = tf.stack([tf.constant(seed, tf.int64), number])
        shuffled = tf.data.Dataset.from_tensor_slices(
            tf.random.experimental.stateless_shuffle(names, seed=words)
        )
        records = shuffled.interleave(tf.data.TFRecordDataset, cycle_length=4)
        return records.shuffle(_SHUFFLED, seed=seed)

    return tf.data.Dataset.counter().flat_map(epoch).map(example, num_parallel_calls=2, deterministic=True)
