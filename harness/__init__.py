"""The harness: from an experiment file to recorded, comparable results."""
