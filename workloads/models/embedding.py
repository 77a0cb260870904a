"""Tables of vectors by id, looked up row by row."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def embedding_table(n_rows: int, width: int, *, name: str) -> "keras.Variable":
    """Return a trainable table [n_rows, width] with small uniform values."""
    import keras

    layer = keras.layers.Embedding(n_rows, width, name=name)
    layer.build()
    return layer.embeddings


def look_up(table: "keras.Variable", ids: "tf.Tensor") -> "tf.Tensor":
    """Return the rows of ids [...] as vectors [..., width].

    Called as a layer, Keras reads the whole table before it looks rows up; from the variable itself
    TensorFlow gathers single rows, which is what makes a remote table cheap.
    """
    import tensorflow as tf

    return tf.nn.embedding_lookup(table.value, ids)
