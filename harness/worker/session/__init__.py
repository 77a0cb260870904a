"""One worker's TensorFlow session: a program goes in; steps, traces and checkpoints come out."""
