"""A folder with the name of a library is no library: asked in one place, and nothing changes where there is one."""

import ast
import importlib
import sys
import warnings
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starting import finished_ranks
from tiny import Tiny, files, losses, split, trainer

from lightrainer.callbacks import LossCurveCallback
from lightrainer.callbacks.loggers.availability import TRACKERS
from lightrainer.callbacks.memory import memory_in_use
from lightrainer.facade.arguments import packages
from lightrainer.facade.arguments.enums import OptimizerNames
from lightrainer.facade.distributed import xla_device
from lightrainer.interception.stand_in import availability
from lightrainer.lightning_modules.common import libraries

ROOT = Path(__file__).parents[3]
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in ("package", "facade", "lightning_modules", "callbacks")
    for path in (ROOT / folder).rglob("*.py")
}
QUESTIONS = {"is_installed", "loaded", "is_instance", "import_module", "load", "_library"}
REQUIRED = split(  # of the package, and of those
    "aiohttp dill fsspec huggingface_hub jinja2 lazy_loader lightning multiprocess numpy optuna packaging pyarrow "
    "safetensors tokenizers torch torchmetrics tqdm typing_extensions xxhash yaml pytorch_lightning google setuptools "
    "datasets pandas lightrainer"
)


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), ast.unparse(node.func), node.args


def modules_named(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
    for name, _, given in calls(tree):
        if name in QUESTIONS:
            texts = (one.value for one in given[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str))
            yield from (text for text in texts if text.replace(".", "").replace("_", "").isalnum())


OPTIONAL = sorted(
    {name.partition(".")[0] for tree in TREES.values() for name in modules_named(tree)}.union(
        module for module, _ in packages._OPTIMIZERS.values()
    ).difference(REQUIRED, sys.stdlib_module_names, [""])
)


def test_the_code_is_searched_for_optional_libraries():
    assert {"peft", "transformers", "accelerate", "wandb", "keras", "deepspeed", "ray", "psutil"} <= set(OPTIONAL)


def asks_python(node):
    """Tell if a call or comparison asks Python itself for a library that may be missing."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("find_spec", "importlib.util.find_spec"):
        return True
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.modules.get":
        named = node.args[0]
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "sys.modules":
        named = node.left
    else:
        return False
    return isinstance(named, ast.Constant) and named.value.partition(".")[0] in OPTIONAL


def test_the_question_is_asked_in_one_place():
    asking = {path for path, tree in TREES.items() if any(map(asks_python, ast.walk(tree)))}
    recorder = {path for path in asking if path.endswith("compare/recorder.py")}  # also runs where lightrainer is not
    assert asking - recorder == {"lightning_modules/common/libraries.py"}


def test_what_counts_as_a_library(tmp_path, monkeypatch):
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


def answers(folder):
    """Output of a training, and the error where a library is missing."""
    given: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no psutil is said
        options = {"report_to": "all", "save_strategy": "epoch", "eval_strategy": "epoch", "skip_memory_metrics": False}
        run = trainer(folder, model_init=lambda: Tiny(), **options)
    run.train()
    run.create_model_card()
    given["losses"] = losses(run), run.evaluate()["eval_loss"]
    given["callbacks"] = [type(one).__name__ for one in run.callback_handler.callbacks]
    given["files"], given["card"] = files(folder), (folder / "README.md").read_text()
    given["memory"] = sorted(memory_in_use())
    given["stand-in"] = {
        name: getattr(availability, name).__wrapped__()
        for name in vars(availability)
        if hasattr(getattr(availability, name), "cache_clear")
    }
    for optim in OptimizerNames:
        args = SimpleNamespace(deepspeed=None, fsdp=None, use_liger_kernel=False, optim=optim)
        given[optim.value] = refusal(packages.require_packages, args)
    needing: dict[str, Any] = {
        "deepspeed": packages.require_deepspeed,
        "torch_xla": lambda: xla_device.require_xla("debug='tpu_metrics_debug'"),
        "matplotlib": LossCurveCallback,
        **{name: partial(trainer, folder, report_to=name) for name in TRACKERS},
        "ray": partial(run.hyperparameter_search, backend="ray"),
    }
    return given | {name: refusal(call) for name, call in needing.items()}


def refusal(call, *args):
    try:
        call(*args)
    except (ImportError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return None


def test_a_folder_with_the_name_of_a_library_changes_nothing(tmp_path, monkeypatch):
    """For all of them at once: without the library, and with a folder of its name that something has imported."""
    given = {}
    for kind in ("missing", "folders"):
        xla_device.has_xla.cache_clear()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in OPTIONAL:
                patch.setitem(sys.modules, name, namespace(tmp_path, name) if kind == "folders" else None)
            given[kind] = answers(tmp_path / kind / "run")
    xla_device.has_xla.cache_clear()
    refused = {name for name, said in given["missing"].items() if "pip install" in str(said)}
    assert refused >= {"deepspeed", "torch_xla", "matplotlib", "ray", "schedule_free_adamw", *TRACKERS}
    assert given["folders"] == given["missing"]


def namespace(folder, name):
    (folder / name).mkdir()
    spec = PathFinder.find_spec(name, [str(folder)])
    assert spec is not None
    return module_from_spec(spec)


def test_a_folder_that_is_there_before_lightning_is_none_either(tmp_path):
    """Lightning asks by itself for torch_xla."""
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "script.py").write_text(
        "import sys, torch_xla, torch\nfrom lightrainer import Trainer, TrainingArguments\n"
        "data = [{'input': torch.ones(2), 'labels': torch.ones(2)}] * 8\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, input, labels):\n"
        "        return {'loss': (super().forward(input) - labels).square().mean()}\n"
        "Trainer(Model(2, 2), TrainingArguments(sys.argv[1], report_to='none'), train_dataset=data).train()\n"
    )
    options = {"processes": 0, "library": "torch", "PYTHONPATH": str(tmp_path)}
    finished_ranks(tmp_path / "script.py", str(tmp_path / "out"), log=tmp_path / "log", seconds=300, **options)
