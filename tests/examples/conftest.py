"""Take the Python without transformers from the tests of interception."""

import importlib.util
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONFTEST = TESTS / "package" / "interception" / "conftest.py"
_spec = importlib.util.spec_from_file_location("interception_conftest", CONFTEST)
_interception = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_interception)
without_library = _interception.without_library
