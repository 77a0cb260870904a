"""What the kernel counts of a worker: bytes of connections and interfaces, processor time, memory."""
