"""Lets a process import DeepSpeed, which the Makefile installs into a separate folder, and compute
on the CPU.
"""

import os
import sys
import warnings

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.append(os.path.join(sys.prefix, "deepspeed"))  # last: only what is missing is taken there
warnings.filterwarnings("ignore")
# under `make test-private-names`, whose plugin is one of pytest's process alone
if "RENAMED" in os.environ:
    from helpers.scripts import renamed_names  # noqa: F401 - imported for its effect
