"""Hyperparameter search: the study, the values and folders of trials, and the result.

The Trainer calls `hyperparameter_search`. A backend (`optuna_backend`, `ray_backend`) calls
`search_run` for each trial of a search. `facade/arguments/trial_values.py` casts values to the
types of arguments.
"""
