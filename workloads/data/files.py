"""Files of real data that a person names: find, check and read them as text, ratings or images."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads.protocol import WorkloadError

if TYPE_CHECKING:
    import tensorflow as tf


DATA, CHECKSUM = "data", "data_sha256"


def data_files(data: str, sha256: str | None = None, *, field: str = DATA) -> tuple[Path, ...]:
    """Find the files of a data set: the given file, or all files of a folder except hidden ones, by name.

    Args:
        data: path of a file or folder.
        sha256: SHA-256 of the file, or for a folder of the output of `LC_ALL=C sha256sum *` in it; None skips
            the check.
        field: parameter that holds the path, for error messages.

    Raises:
        WorkloadError: there are no files, or their checksum differs.
    """
    path = Path(data)
    if not path.exists():
        message = (
            f"{field} must be a file or folder where workers run, got {data!r}, which is not there; "
            "correct the path, or leave it out"
        )
        raise WorkloadError(message, field=field)
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    files = tuple(path for path in inside if path.is_file() and path.name[0] != ".")
    if not files:
        message = f"{field} must have files, got {data!r}, an empty folder; correct the path, or leave it out"
        raise WorkloadError(message, field=field)
    if sha256 is not None:
        _check(path, files, sha256)
    return files


def one_file(data: str, sha256: str | None = None, *, field: str = DATA) -> Path:
    """Find a data set that is one file.

    Raises:
        WorkloadError: see `data_files`; also if there are several files.
    """
    files = data_files(data, sha256, field=field)
    if len(files) > 1:
        message = f"{field} must be one file, got {data!r} with {len(files)}; give the path of one"
        raise WorkloadError(message, field=field)
    return files[0]


def read_text(path: Path, *, field: str = DATA) -> str:
    """Read a text file.

    Raises:
        WorkloadError: the file is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = (
            f"{field} must be text in UTF-8, got byte {error.object[error.start]:#04x} at {error.start:,} of "
            f"{path}; convert it with iconv"
        )
        raise WorkloadError(message, field=field) from error


def _check(path: Path, files: tuple[Path, ...], sha256: str) -> None:
    sums = {file.name: _sha256(file) for file in files}
    actual = sums[path.name] if path.is_file() else _listing(sums)
    if actual != sha256:
        message = (
            f"data_sha256 must be that of {path}, {actual}, got {sha256}; fetch the data anew, or correct or "
            "leave out data_sha256"
        )
        raise WorkloadError(message, field=CHECKSUM)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listing(sums: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    return hashlib.sha256(lines.encode()).hexdigest()


Ids = npt.NDArray[np.int64]
_FIELDS = ("user", "item", "rating", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """Ratings of items by users; both are numbered from 0, in the order of their ids.

    Args:
        users: user number of each rating, [n].
        items: item number of each rating, [n].
        n_users: number of distinct users. n_items: number of distinct items.
    """

    users: Ids
    items: Ids
    n_users: int
    n_items: int


def read_ratings(path: Path) -> Ratings:
    """Read lines `user::item::rating::time`, as in `ratings.dat` of MovieLens-1M and -10M.

    Raises:
        WorkloadError: a line does not have this format.
    Source:
        README of MovieLens-1M, https://files.grouplens.org/datasets/movielens/ml-1m-README.txt.
    """
    text = read_text(path).replace("::", ",")
    try:
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2, usecols=range(len(_FIELDS)))
    except ValueError as error:
        message = f"data must have lines {'::'.join(_FIELDS)}, got in {path}: {error}; give a ratings.dat"
        raise WorkloadError(message, field=DATA) from error
    if not len(table):
        raise WorkloadError(f"data must have ratings, got none in {path}; give a ratings.dat", field=DATA)
    user_ids, users = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    item_ids, items = np.unique(table[:, 1].astype(np.int64), return_inverse=True)
    return Ratings(users=users, items=items, n_users=len(user_ids), n_items=len(item_ids))


def not_rated(ratings: Ratings, users: Ids, rng: np.random.Generator) -> Ids:
    """Draw, for each of these users, an item that the user did not rate, all with equal probability.

    Args:
        users: user numbers [n]; every user has at least one unrated item.
    Returns:
        Item numbers [n].
    Raises:
        WorkloadError: a user rated every item.
    """
    counts = np.bincount(ratings.users, minlength=ratings.n_users)
    if (counts[users] >= ratings.n_items).any():
        message = f"data must leave each user an item without rating, got one who rated all {ratings.n_items}"
        raise WorkloadError(f"{message}; give a larger ratings.dat", field=DATA)
    rated = np.unique(ratings.users * ratings.n_items + ratings.items)
    items = np.zeros(len(users), np.int64)
    left = np.arange(len(users))
    while len(left):
        items[left] = rng.integers(ratings.n_items, size=len(left))
        keys = users[left] * ratings.n_items + items[left]
        place = np.minimum(np.searchsorted(rated, keys), len(rated) - 1)
        left = left[rated[place] == keys]
    return items


_IMAGE, _LABEL = "image/encoded", "image/class/label"
# Means and standard deviations of ImageNet's colours, of 255: red, green, blue.
_MEANS = (123.68, 116.78, 103.94)
_DEVIATIONS = (58.39, 57.12, 57.38)
_SHUFFLED = 1024
# Shorter side before the central square is cropped, relative to the requested side.
_MARGIN = 256 / 224


def image_records(files: Sequence[Path], *, side: int, classes: int, seed: int) -> "tf.data.Dataset":
    """Read examples (image [side, side, 3] float32, label [] int32) endlessly, in an order set by the seed.

    A record has `image/encoded` (JPEG or PNG) and `image/class/label` (from 1). An image is scaled, cropped
    to its centre and normalised by ImageNet's colours. A record without an image, or with a label above
    `classes`, ends the reading with an error that says so.

    Args:
        classes: number of classes; labels are 1 to `classes`.
    Raises:
        WorkloadError: no file has a record, so that reading would never end.
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
