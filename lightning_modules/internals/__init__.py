"""Wrap private names of Lightning and torch, each covered by a test, and provide fast paths.

No other package uses private names of Lightning. Imports only `lightning_modules/common`.
"""
