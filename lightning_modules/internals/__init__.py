"""Private names of Lightning, each held by a test, and the fast path around a training step.

Nothing else touches a private name of Lightning. Imports `lightning_modules/common` only.
"""
