"""Hyperparameter search: the study, the values of a trial, its folder, the result.

`hyperparameter_search` has what the Trainer calls; `search_run` runs the trials of one search,
called by the backends (`optuna_backend`, `ray_backend`). Not here: casting values to the types of
arguments (`facade/arguments/trial_values.py`).
"""
