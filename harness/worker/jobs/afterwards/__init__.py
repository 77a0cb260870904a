"""Jobs once the last window is timed: what codecs and rules cost by themselves, how good the model is."""
