"""Hyperparameter search: the study and its options, the values of a trial, its folder, what comes out of it."""
