"""Import interception: serve names of `transformers` from this package to unchanged scripts.

`names` is the table of served names; `finder` answers imports; `switch` turns the interception on
and off; `runner` starts scripts. Importing this folder is cheap, because every child process of a
served script may do it.
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
