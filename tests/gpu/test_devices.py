"""New tensors of the package say their device, whatever torch's default device is."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("package", "facade", "lightning_modules", "callbacks")
# Make batches, or tensors of the user's own, which take torch's default device as in the reference.
OF_USERS = (
    "lightning_modules/data/collators",
    "lightning_modules/tokenization",
    "keras",
    "facade/compat/models.py",
)
NAMES = [
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "eye", "arange", "linspace"),
    *("rand", "randn", "randint", "randperm"),
]


def test_factories_are_called_with_a_device():
    violations = []
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if any(part in name for part in OF_USERS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in NAMES
            ):
                of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
                if of_torch and not any(
                    keyword.arg in ("device", None) for keyword in node.keywords
                ):
                    violations.append(f"{name}:{node.lineno}")
    assert not violations
