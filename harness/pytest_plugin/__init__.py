"""The pytest plugin: cases of experiments as benchmarks of pytest-benchmark.

pytest imports `hooks` at every start of whoever has installed this, so that it and what it imports must cost
nothing. A call of the fixture `strategy_benchmark` comes in; a case runs in a process of its own, and its
windows go out as the rounds of the benchmark.
"""
