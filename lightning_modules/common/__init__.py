"""Seeds, files of torch, safe serialization, nested values, suggestions, directions of metrics.

Contains helpers that several subpackages share and that are independent of training. Imports no
other subpackage.
"""
