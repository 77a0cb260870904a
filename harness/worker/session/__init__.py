"""One worker's TensorFlow session: a program goes in; steps and checkpoints come out."""
