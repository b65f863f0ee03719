"""Collators make a batch of tensors or arrays from a list of samples.

Importing this folder loads neither torch nor Lightning, since a worker process that makes arrays
needs only numpy.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
