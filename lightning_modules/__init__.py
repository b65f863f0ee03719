"""LightningModules and their parts; for Lightning users too."""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
