"""Saving of checkpoints during a training, and resumption from them.

Not here: the files themselves (`lightning_modules/checkpoints`). Imports every subpackage but
`facade/trainer`.
"""
