"""One traced step of a worker: a step runs under TensorFlow's tracing; what took how much of it comes out."""
