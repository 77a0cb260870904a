"""The harness: from an experiment file to recorded, comparable results.

`pipeline` is where the stages meet: `experiment` reads what a person asks for, `provision` brings up
workers, `run` takes them through the cases, `measure` and `equivalence` say what came of it, `records`
keeps it. `study` looks at one strategy outside of a run, `worker` is what runs on the workers' side, `cli`
is the command line, and `pytest_plugin` lets tests call it.
"""
