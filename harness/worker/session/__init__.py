"""TensorFlow session of a worker: runs a program's steps, and saves its checkpoints."""
