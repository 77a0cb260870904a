"""Plans, and what follows from them alone: parts, owners, compressors, payload in bytes.

Plans are JSON: builders make them, people edit them, passes carry them out. No TensorFlow.
"""
