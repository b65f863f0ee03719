"""Inspect models, unwrap them, read their outputs, generate with them, and change their execution.

Contains wrappers, signatures, properties of models of `transformers`, outputs, generation,
activation checkpointing, NEFTune and Liger kernels. Imports `common`.
"""
