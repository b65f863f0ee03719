"""Hyperparameter search: the study, the values of a trial, its folder, what comes out of it.

`session` is what the Trainer asks; `search` runs trials; backends (optuna, Ray) call it. Not here: casting values to
what arguments hold (`facade/arguments/trial_values.py`). Knows the Trainer by `facade/protocols`.
"""
