"""Plans and everything that can be computed from them alone: parts, owners, compressors, payload.

Plans are JSON: builders make them, people edit them, passes carry them out. No TensorFlow.
"""
