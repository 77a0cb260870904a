"""What a step does after its gradients are there, in fewer operations."""
