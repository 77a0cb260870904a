"""From a captured step and a topology to a plan; one file per family."""
