"""Synchronisation among replicas that own variables: TensorFlow's collectives, a ring, sharded updates."""
