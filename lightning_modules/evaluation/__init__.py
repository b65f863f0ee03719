"""Collect an evaluation: arrays written once to their place, objects, torchmetrics.

Not here: the loop itself, which is Lightning's. Imports `common` and `data`.
"""
