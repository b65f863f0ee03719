"""Ranks, launchers, the process group, and the values that ranks exchange.

Here: launchers, the process group, cluster environments, notebooks. Not here: how a model is spread
over processes (`facade/strategies`). The lowest subpackage: imports `lightning_modules` only.
"""
