"""Import the libraries once, in the process that those of cases are forked from."""

import contextlib
import importlib

for _name in ("transformers", "lightrainer"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name).Trainer  # noqa: B018 - lazily imported
