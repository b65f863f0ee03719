"""Evaluation and prediction: the loop over batches, metrics, results, speed.

Not here: public methods and override points (`facade/trainer`), collection of arrays
(`lightning_modules/evaluation`). Imports arguments, distributed, strategies, accelerator.
"""
