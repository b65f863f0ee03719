"""A folder named like a library does not count as the library: this is checked in one place, and
such a folder changes nothing.
"""

import ast
import importlib
import sys
from pathlib import Path

from helpers.processes.starting import finished_ranks
from helpers.trainer.tiny_trainings import split
from lightrainer.lightning_modules.common import libraries

ROOT = Path(__file__).parents[3]
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in ("package", "facade", "lightning_modules", "callbacks")
    for path in (ROOT / folder).rglob("*.py")
}
QUESTIONS = {"is_installed", "loaded", "is_instance", "import_module", "load", "_library"}
REQUIRED = split(  # of the package, and of those
    "aiohttp dill fsspec huggingface_hub jinja2 lazy_loader lightning multiprocess numpy optuna "
    "packaging pyarrow safetensors tokenizers torch torchmetrics tqdm typing_extensions xxhash "
    "yaml pytorch_lightning google setuptools datasets pandas lightrainer"
)


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield (
                getattr(node.func, "attr", getattr(node.func, "id", "")),
                ast.unparse(node.func),
                node.args,
            )


def modules_named(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
    for name, _, arguments in calls(tree):
        if name in QUESTIONS:
            texts = (
                argument.value
                for argument in arguments[:2]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )
            yield from (text for text in texts if text.replace(".", "").replace("_", "").isalnum())


OPTIONAL = sorted(
    {name.partition(".")[0] for tree in TREES.values() for name in modules_named(tree)}.difference(
        REQUIRED, sys.stdlib_module_names, [""]
    )
)


def asks_python(node):
    """Tell if a call or comparison asks Python itself for a library that may be missing."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "find_spec",
        "importlib.util.find_spec",
    ):
        return True
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.modules.get":
        named = node.args[0]
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "sys.modules":
        named = node.left
    else:
        return False
    return isinstance(named, ast.Constant) and named.value.partition(".")[0] in OPTIONAL


def test_libraries_are_checked_in_one_place():
    asking = {path for path, tree in TREES.items() if any(map(asks_python, ast.walk(tree)))}
    # also runs where lightrainer is not
    recorder = {path for path in asking if path.endswith("compare/recorder.py")}
    assert asking - recorder == {"lightning_modules/common/libraries.py"}


def test_libraries_installed_or_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a_folder", "a_library"):
        (tmp_path / name).mkdir()
    (tmp_path / "a_library" / "__init__.py").write_text("class Model: pass")
    assert libraries.is_installed("a_library")
    assert not any(map(libraries.is_installed, ("a_folder", "no.such.package")))
    assert libraries.loaded("a_library") is None
    folder, library = (importlib.import_module(name) for name in ("a_folder", "a_library"))
    assert [libraries.loaded(name) for name in ("a_folder", "a_library")] == [None, library]
    assert not libraries.is_installed("a_folder")  # nor when it is loaded
    assert libraries.is_instance(library.Model(), "a_library", "Model")
    assert not libraries.is_instance(folder, "a_folder", "Model")


def test_libraries_ignore_a_folder_of_the_same_name(tmp_path):
    """Lightning asks by itself for torch_xla."""
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "script.py").write_text(
        "import sys, torch_xla, torch\nfrom lightrainer import Trainer, TrainingArguments\ndata = "
        "[{'input': torch.ones(2), 'labels': torch.ones(2)}] * 8\nclass Model(torch.nn.Linear):\n"
        "    def forward(self, input, labels):\n        return {'loss': (super().forward(input) - "
        "labels).square().mean()}\nTrainer(Model(2, 2), TrainingArguments(sys.argv[1], "
        "report_to='none'), train_dataset=data).train()\n"
    )
    options = {"processes": 0, "library": "torch", "PYTHONPATH": str(tmp_path)}
    finished_ranks(
        tmp_path / "script.py", str(tmp_path / "out"), log=tmp_path / "log", seconds=300, **options
    )
