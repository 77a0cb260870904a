"""What a plan says, and what follows from it alone: parts, owners, compressors, payload in bytes.

Plans are JSON: builders make them, people edit them, passes carry them out. No TensorFlow.
"""
