"""Studies of optuna in which several processes train each trial together.

For any training loop, and for `facade/search`. Imports `common`, `internals` and `distributed`.
"""
