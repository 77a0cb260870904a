"""TPU computations: replication, host loops, resharding, and emulation on other devices."""
