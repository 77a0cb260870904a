"""TPU slices as far as a plan's collectives cost time on them: chips, links, and seconds at best.

The name of a slice and a plan come in; nothing is started, and neither TensorFlow nor Ray is asked.
"""
