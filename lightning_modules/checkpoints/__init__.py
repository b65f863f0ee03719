"""Write folders `checkpoint-N` atomically and read them without unpickling arbitrary objects.

Here: the format, usable from any training loop: weights, states, integrity, crash-safe writing,
selection and rotation of folders; `FolderCheckpointIO` is for Lightning. Not here: when a
checkpoint is written (`facade/checkpointing`). Imports all subpackages but `training` and `tasks`.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
