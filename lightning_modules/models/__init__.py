"""Inspect models, unwrap them, read their outputs, generate with them, and change their execution.

Here: wrappers, signatures, facts about models of `transformers`, outputs, generation, activation
checkpointing, NEFTune, Liger's kernels. Imports `common`.
"""
