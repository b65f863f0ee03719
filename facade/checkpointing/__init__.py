"""Save checkpoints during training, and resume from them.

The files are read and written by `lightning_modules/checkpoints`. Imports every subpackage except
`facade/trainer`.
"""
