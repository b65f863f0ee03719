"""Scripts are compared with the means of the parity tests, and hidden from transformers as in those of interception."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "parity")]

_spec = importlib.util.spec_from_file_location(
    "interception_conftest", TESTS / "package" / "interception" / "conftest.py"
)
_interception = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_interception)
without_library = _interception.without_library
