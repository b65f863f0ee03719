"""Look at models, read what they return, generate with them, change how they are executed.

Here: inspection, outputs, generation, activation checkpointing, NEFTune, Liger's kernels. Imports `common`.
"""
