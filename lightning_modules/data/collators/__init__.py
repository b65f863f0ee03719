"""Collators: from a list of samples to a batch of tensors or arrays.

Importing this folder loads neither torch nor Lightning: a worker process that makes arrays needs no
more than numpy.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
