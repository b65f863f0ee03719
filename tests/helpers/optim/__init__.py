"""Optimizers of the reference, and stand-ins for libraries of optimizers."""
