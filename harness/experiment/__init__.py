"""What a person asks for, as frozen values: experiments, references and the cases they stand for.

In go YAML, command-line values and names of strategies and workloads; out come a spec with its hash and the
cases in the order in which they run. Nothing is started, and no TensorFlow is imported.
"""
