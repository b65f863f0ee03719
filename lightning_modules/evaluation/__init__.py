"""Collect the results of an evaluation: arrays, objects, torchmetrics.

Not here: the loop itself, which is Lightning's. Imports `common` and `internals`.
"""
