"""Which checkpoint is written and read when, and what a resumed training has to make anew.

Not here: the files themselves (`lightning_modules/checkpoints`). Imports every room but `facade/trainer`.
"""
