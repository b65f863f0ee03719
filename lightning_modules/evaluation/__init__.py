"""Collect the results of an evaluation: arrays, objects and torchmetrics.

The evaluation loop itself is Lightning's. Imports `common` and `internals`.
"""
