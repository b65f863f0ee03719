"""Inspect models, read their outputs, generate with them, and change their execution.

Here: inspection, outputs, generation, activation checkpointing, NEFTune, Liger's kernels. Imports
`common`.
"""
