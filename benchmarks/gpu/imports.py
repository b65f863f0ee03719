"""Import the libraries once, in the process that those of cases are forked from."""

import contextlib
import importlib
import os

# transformers asks for the number of GPUs when it is imported. Where torch asks CUDA for it, no
# forked process can use CUDA any more; NVML answers as well.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

for _name in ("transformers", "lightrainer"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name).Trainer  # noqa: B018 - lazily imported
