"""Write folders `checkpoint-N` atomically and read them without unpickling arbitrary objects.

Holds the checkpoint format, which any training loop can use: weights, states, integrity checks,
crash-safe writing, selection and rotation of folders. `FolderCheckpointIO` is the plugin for
Lightning. `facade/checkpointing` decides when a checkpoint is written. Imports all subpackages
except `training` and `tasks`.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
