"""Interception switched on and off in a running process, also late, and in child processes."""

import sys
from types import ModuleType

import pytest

from helpers.processes.plain_pythons import forked, last_json, run
from lightrainer.interception import loaded

ON_AND_OFF = """
import importlib, json, logging, os, sys
import lightrainer
from lightrainer.interception import installed
finders, path = list(sys.meta_path), dict(os.environ)
level = logging.getLogger("lightrainer").getEffectiveLevel()
facts = [installed()]
first = lightrainer.install()
facts += [lightrainer.install() is first, sys.meta_path.count(first), installed(), os.environ["LIGHTRAINER_INSTALL"]]
from transformers import Trainer
import transformers.trainer_utils
facts += [Trainer is lightrainer.Trainer]
lightrainer.uninstall()
lightrainer.uninstall()
facts += [installed(), first not in sys.meta_path and set(finders) <= set(sys.meta_path)]
facts += [dict(os.environ) == path]
facts += [level == logging.getLogger("lightrainer").getEffectiveLevel()]
try:
    import transformers
    from transformers import Trainer as again
    import transformers.trainer_utils
    facts += [again.__module__, transformers.Trainer is again, type(transformers).__name__]
    facts += [transformers.trainer_utils.set_seed.__module__]
except ModuleNotFoundError as error:
    facts += [error.name, str(error)]
lightrainer.install(children=False)
from transformers import Trainer
facts += [Trainer is lightrainer.Trainer, "LIGHTRAINER_INSTALL" in os.environ]
print(json.dumps(facts))
"""
BOTH = [False, True, 1, True, "1", True, False, True, True, True]


PYTHONS = [
    ("with_library", ["transformers.trainer", True, "_LazyModule", "transformers.trainer_utils"]),
    ("without_library", ["transformers", "No module named 'transformers'"]),
]


@pytest.mark.parametrize(("python", "left"), PYTHONS)
def test_switch_leaves_nothing_behind(request, tmp_path, python, left):
    facts = last_json(forked(request.getfixturevalue(python), "-c", ON_AND_OFF, cwd=tmp_path))
    assert facts == [*BOTH, *left, True, False]


LATE = """
import importlib, json, sys, types, warnings
import transformers
from transformers import Trainer, TrainerCallback, set_seed
from transformers.trainer_utils import FSDPOption, get_last_checkpoint, total_processes_number
import transformers.integrations, transformers.modelcard, transformers.trainer_pt_utils as before
from transformers.trainer import logger, is_sagemaker_mp_enabled
detach = before.nested_detach
held = importlib.import_module("transformers.trainer")
mine = types.ModuleType("a_module_of_mine")
mine.Base, mine.other = Trainer, 3
sys.modules["a_module_of_mine"] = mine
import lightrainer
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lightrainer.install()
    lightrainer.install()
text = [str(one.message) for one in caught if one.category is UserWarning]
import transformers.trainer_pt_utils as after
import transformers.trainer
from transformers.trainer import is_sagemaker_mp_enabled as again
ours = [
    transformers.Trainer is lightrainer.Trainer,
    transformers.trainer.Trainer is lightrainer.Trainer,
    sys.modules["transformers.trainer"].Trainer is lightrainer.Trainer,
    transformers.trainer_utils.set_seed is lightrainer.set_seed,
    transformers.set_seed is lightrainer.set_seed,
    again is is_sagemaker_mp_enabled,
    Trainer is not lightrainer.Trainer,
    after.nested_detach is not detach,
]
lightrainer.uninstall()
import transformers.trainer_pt_utils as last
back = [
    transformers.Trainer is Trainer is transformers.trainer.Trainer,
    sys.modules["transformers.trainer"] is held,
    last is before and last.nested_detach is detach,
    transformers.set_seed is set_seed,
    type(transformers).__name__ == "_LazyModule",
]
print(json.dumps([text, ours, back]))
"""


def test_loaded_modules_are_replaced_and_other_holders_are_named(with_library, tmp_path):
    text, ours, back = last_json(forked(with_library, "-c", LATE, cwd=tmp_path))
    assert all(ours), ours
    assert all(back), back
    (warning,) = text
    for holder in ("__main__ (Trainer, TrainerCallback, set_seed, ", "a_module_of_mine (Base)"):
        assert holder in warning


NOTEBOOK = """
import json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def cell(text):
    done = shell.run_cell(text)
    done.raise_error()
    return done.result
cell("%load_ext lightrainer")
kind = cell("from transformers import Trainer; Trainer.__module__")
cell("%load_ext lightrainer")
cell("%unload_ext lightrainer")
try:
    after = cell("from transformers import Trainer as plain; plain.__module__")
except ModuleNotFoundError as error:
    after = error.name
cell("%reload_ext lightrainer")
again = cell("from transformers import Trainer; Trainer.__module__")
print(json.dumps([kind, after, again]))
"""


@pytest.mark.parametrize("python", ["with_library", "without_library"])
def test_switch_in_a_notebook(python, request, tmp_path):
    pytest.importorskip("IPython")
    options = {"cwd": tmp_path, "environment": {"IPYTHONDIR": str(tmp_path)}}
    kind, after, again = last_json(
        forked(request.getfixturevalue(python), "-c", NOTEBOOK, **options)
    )
    assert kind.startswith("lightrainer.")
    assert after == ("transformers.trainer" if python == "with_library" else "transformers")
    assert again == kind


CHILDREN = """
import json, multiprocessing, os, pickle, subprocess, sys

class OfMain:
    def __init__(self, value):
        self.value = value

def in_child(given):
    from transformers import TrainerCallback
    return [type(given).__module__, given.value, TrainerCallback.__module__, given.__class__.__name__]

class Data:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        from transformers.trainer_utils import IntervalStrategy
        return f"{index} {IntervalStrategy.__module__} {OfMain(index).value}"

if __name__ == "__main__":
    found = {}
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.apply(in_child, (OfMain(method),))
    import torch
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn", batch_size=2)
    found["workers"] = next(iter(loader))
    code = "from transformers import TrainerCallback as T; print(T.__module__)"
    found["process"] = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    off = {**os.environ, "LIGHTRAINER_INSTALL": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=off)
    found["kept from it"] = done.stderr.strip().splitlines()[-1]
    isolated = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    found["isolated"] = isolated.stderr.strip().splitlines()[-1]
    print(json.dumps(found))
"""
INSTALLING = "import lightrainer; lightrainer.install()\n" + CHILDREN


@pytest.mark.parametrize("way", ["runner", "install"])
def test_child_processes_of_every_kind_are_served(way, without_library, tmp_path):
    """Forked and spawned ones, data workers, other Pythons; those that are to be left alone are."""
    (tmp_path / "script.py").write_text(CHILDREN if way == "runner" else INSTALLING)
    words = ["-m", "lightrainer"] if way == "runner" else []
    results = last_json(run(without_library, *words, "script.py", cwd=tmp_path))
    for method in ("fork", "spawn", "forkserver"):
        home = "__main__" if method == "fork" else "__mp_main__"
        assert results[method] == [home, method, "lightrainer.callbacks.base", "OfMain"]
    assert results["workers"] == [
        f"{index} lightrainer.facade.arguments.enums {index}" for index in (0, 1)
    ]
    assert results["process"] == "lightrainer.callbacks.base"
    assert (
        results["kept from it"]
        == results["isolated"]
        == "ModuleNotFoundError: No module named 'transformers'"
    )


NEXT = "import os; os.environ['SEEN'] = os.environ.get('SEEN', '') + 'x'"


def test_switch_runs_an_existing_sitecustomize(without_library, tmp_path):
    """Once, and under its own name; the start of a process that asks for nothing loads nothing
    of lightrainer.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NEXT)
    code = (
        "import json, os, sys, sitecustomize\nours = sorted(name for name in sys.modules if "
        "name.partition('.')[0] in ('lightrainer', "
        "'lazy_loader'))\nprint(json.dumps([os.environ['SEEN'], sitecustomize.__file__, ours]))"
    )
    on = {"PYTHONPATH": str(tmp_path / "site")}
    marks, file, ours = last_json(
        run(without_library, "-m", "lightrainer", "-c", code, cwd=tmp_path, environment=on)
    )
    assert marks == "xx"  # in the Python that started, and in the one that took its place
    assert file == str(tmp_path / "site" / "sitecustomize.py")
    assert ours == []


def test_switch_leaves_a_python_without_lightrainer_alone(without_library, tmp_path):
    """Scripts start programs of other environments, which inherit the variables."""
    from lightrainer.interception import environment

    variables: dict[str, str] = {}
    environment.switch_on(variables)
    code = (
        "import sys; sys.modules['lightrainer'] = None\ntry: import transformers\nexcept "
        "ImportError as e: print(e)"
    )
    done = run(without_library, "-c", code, cwd=tmp_path, environment=variables)
    assert done.stdout == "No module named 'transformers'\n", done.stderr


def test_switch_undoes_a_replacement_that_failed(monkeypatch):
    """A name that was never set is not deleted."""
    library, module = ModuleType("transformers"), ModuleType("transformers.part")
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setitem(sys.modules, "transformers.part", module)
    monkeypatch.setattr(loaded, "SERVED", {"part": {"first": "a", "second": "b"}})

    def resolve(target):
        if target == "b":
            raise ImportError(target)
        return target

    monkeypatch.setattr(loaded, "resolve", resolve)
    replacement = loaded.LoadedModules()
    with pytest.raises(ImportError, match="b"):
        replacement.replace_names()
    assert module.first == "a"
    replacement.restore()
    assert not hasattr(module, "first")
