"""Loaders, samplers and collators, and their exact position in an epoch.

Here: the order of samples, shares of processes, worker processes, random generators of datasets,
streams. Not here: the DataModule (`lightning_modules/tasks`). Imports `common`, `internals` and
`models`.
"""
