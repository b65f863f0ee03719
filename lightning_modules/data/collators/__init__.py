"""Collators, which turn a list of samples into a batch of tensors or arrays.

Importing this folder loads neither torch nor Lightning, because a worker process that makes arrays
needs only numpy.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
