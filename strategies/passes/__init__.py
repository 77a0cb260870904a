"""Graph to graph, one idea each; `pipeline` runs them in order."""
