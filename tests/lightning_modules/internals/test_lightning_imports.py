"""Lightning is imported without `transformers`, and what needs it finds it all the same."""

import tomllib
from pathlib import Path

import pytest

from helpers.processes.starting import finished_code
from lightrainer.lightning_modules.internals import lightning_version


def last_line(program: str, folder: Path) -> str:
    """Of what a process says that has imported torch, and neither of the libraries."""
    return finished_code(program, folder, library="torch").splitlines()[-1]


def test_deferred_names_resolve_when_used(tmp_path):
    program = """
import lightrainer.lightning_modules.internals.lightning_internals
from torchmetrics.functional.text import bert
import transformers
print(bert.AutoTokenizer.from_pretrained.__func__ is transformers.AutoTokenizer.from_pretrained.__func__)
"""
    assert last_line(program, tmp_path) == "True"


def test_torchvision_is_imported_when_a_metric_uses_it(tmp_path):
    pytest.importorskip("torchmetrics.functional.image.dists")
    library = tmp_path / "torchvision"
    library.mkdir()
    (library / "__init__.py").touch()
    (library / "transforms.py").write_text("Normalize = 'a transform'")
    (library / "models.py").write_text("resnet50 = vgg16 = VGG16_Weights = str")
    about = tmp_path / "torchvision-0.28.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import lightrainer.lightning_modules.internals.lightning_internals
print("torchvision" in sys.modules, end=" ")
from importlib import import_module
dists = import_module("torchmetrics.functional.image.dists")
print(dists.vgg16("loaded"), "torchvision.models" in sys.modules)
"""
    assert last_line(program, tmp_path) == "False loaded True"


def test_modules_can_be_looked_through_while_torchmetrics_is_imported(tmp_path):
    """As torchvision does it, which torchmetrics imports; transformers has modules that import
    others then.
    """
    program = """
import sys, transformers

class LooksThrough:
    def find_spec(self, name, path=None, target=None):
        if name == "torchmetrics.functional.image":
            sys.meta_path.remove(self)
            for module in list(sys.modules.values()):
                hasattr(module, "__file__")

finder = LooksThrough()
sys.meta_path.insert(0, finder)
before = {name for name in sys.modules if name.startswith("transformers")}
import lightrainer.lightning_modules.internals.lightning_internals
after = {name for name in sys.modules if name.startswith("transformers")}
print(finder not in sys.meta_path, before == after, sys.modules["transformers"] is transformers)
"""
    assert last_line(program, tmp_path) == "True True True"


@pytest.mark.parametrize("module", ["lightning.fabric._graveyard.tpu", "fsspec.spec"])
def test_lightning_import_interrupted_by_a_signal_can_be_repeated(tmp_path, module):
    program = f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            raise SystemExit

sys.meta_path.insert(0, Interrupting())
try:
    import lightrainer.lightning_modules.internals.lightning_internals
except SystemExit:
    print("ended")
import lightrainer.lightning_modules.internals.lightning_internals as again
import fsspec
print(again.Trainer.__name__, fsspec.utils.__name__)
"""
    assert finished_code(program, tmp_path, library="torch").splitlines()[-2:] == [
        "ended",
        "Trainer fsspec.utils",
    ]


@pytest.fixture
def installed(monkeypatch):
    """Says which version of Lightning is installed."""
    lightning_version.require_lightning.cache_clear()
    yield lambda version: monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    lightning_version.require_lightning.cache_clear()


@pytest.mark.parametrize(
    "version", ["2.5.6", "2.6.5", "2.7.0", "2.7.0.dev20261101", "3.0", "1.9.5"]
)
def test_lightning_versions_out_of_range_give_advice(installed, version):
    installed(version)
    with pytest.raises(ImportError, match=rf"{version} is installed: pip install"):
        lightning_version.require_lightning()


def test_lightning_version_out_of_range_is_refused(tmp_path):
    """Before Lightning is loaded; the arguments alone do not need it."""
    program = """
import sys
from importlib import metadata
usual = metadata.version
metadata.version = lambda name: "2.5.0" if name == "lightning" else usual(name)
from lightrainer import TrainingArguments
for name in ("Trainer", "LossModule"):
    try:
        __import__("lightrainer", fromlist=[name]).__getattr__(name)
    except ImportError as error:
        print("2.5.0 is installed" in str(error), "lightning" in sys.modules, end=" ")
"""
    assert last_line(program, tmp_path) == "True False True False "


def test_lightning_version_range_equals_the_package():
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    below = lightning_version.BELOW.removesuffix(".0")
    assert f"lightning>={lightning_version.LOWEST},<{below}" in declared
