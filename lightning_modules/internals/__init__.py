"""Private names of Lightning and torch, each held by a test, and faster ways through a step.

Nothing else touches a private name of Lightning. Imports `lightning_modules/common` only.
"""
