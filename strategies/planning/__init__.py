"""From a strategy's name, a user's builder or an edited plan to the plan of a captured step.

In go a reference and a step's summary; out comes a checked plan, or one line that says why there is none.
"""
