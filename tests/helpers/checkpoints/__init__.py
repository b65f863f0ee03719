"""Checkpoints that are resumed, interrupted, damaged, attacked, or in an object store."""
