"""Tests of plans share what makes the arguments of four processes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
