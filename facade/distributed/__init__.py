"""Ranks, launchers, the process group, and the values that ranks exchange.

How a model is distributed is decided in `facade/strategies`. The lowest subpackage: imports only
`lightning_modules`.
"""
