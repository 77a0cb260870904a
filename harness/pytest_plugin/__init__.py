"""The pytest plugin: cases of experiments as benchmarks of pytest-benchmark.

pytest imports `hooks` at every start wherever this package is installed, so its imports must be cheap. Input:
a call of the fixture `strategy_benchmark`. A case then runs in a separate process, and its windows become the
rounds of the benchmark.
"""
