"""The paths to the helper modules beside this file, and to those of trainers, for what is used by them alone."""

import sys
from pathlib import Path

from searched_once import packages_searched_once  # noqa: F401 - a fixture

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "facade"))
