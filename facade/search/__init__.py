"""Hyperparameter search: the study, the values of a trial, its folder, what comes out of it."""
