"""The path to the helper modules beside this file, and to the stand-in for the Hub."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "facade" / "hub")]
