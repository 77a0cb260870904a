"""Examples for shipped workloads, and the global batches that every process takes from a dataset alike.

In come arrays, files or a seed, out go datasets of single examples; `examples` turns any workload's dataset
into global batches, `worker_pipeline` into one worker's, made while it trains.
"""
