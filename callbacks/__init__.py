"""Events of a training run, and the callbacks included.

Modules are imported when one of their names is used, and import optional libraries when a callback
is used.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
