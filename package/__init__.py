"""The documented Trainer API over PyTorch Lightning.

This module lists all public names, which are imported on first use: `from lightrainer import
TrainingArguments` loads neither Lightning nor datasets.
"""

import lazy_loader

__version__ = "0.2.0.dev0"

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
