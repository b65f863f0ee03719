"""Seeds, files of torch, safe serialization, nested values, suggestions, directions of metrics.

Here: helpers shared by several rooms and independent of training. Imports no other room.
"""
