"""The harness: from an experiment file to recorded, comparable results.

`pipeline` connects the stages: `experiment` reads the experiment file, `provision` brings up workers, `run`
takes them through the cases, `measure` and `verification` produce the results, `records` stores them.
`planned_target` plans one strategy outside of a run, `worker` is what runs on the workers' side, `cli` is the
command line, and `pytest_plugin` lets tests call it.
"""
