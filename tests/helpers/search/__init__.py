"""The smallest hyperparameter searches."""
