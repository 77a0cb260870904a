"""Commands, one module for each: options, call of the pipeline, printed answer."""
