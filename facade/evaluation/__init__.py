"""`evaluate` and `predict`: the loop over batches, metrics, results, speed.

Not here: the methods that people call and override (`facade/trainer`), collecting arrays
(`lightning_modules/evaluation`). Imports arguments, distributed, strategies, accelerator.
"""
