"""A training that is reported to Comet: `python comet_script.py transformers|lightrainer FOLDER`."""

import os
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(os.environ["BESIDE"])  # last, so that only what is missing is taken from there

import comet_ml  # noqa: F401 - wants to be the first
from small_run import points, trainer

api = import_module(sys.argv[1])
made = trainer(api, Path(sys.argv[2]), report_to="comet_ml", run_name="named")
made.train()
made.evaluate()
made.predict(points(4))
