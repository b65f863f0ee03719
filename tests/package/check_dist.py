"""Check what `make dist` has built: contents, description, and a training with the wheel in a
separate environment.

    python tests/package/check_dist.py dist

The environment contains nothing of this checkout. The dependencies of the wheel are taken from the
packages of the Python that runs this (a `.pth` file), because downloading torch again would take
longer than all the rest.
"""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAPPED = {
    "package": "lightrainer",
    **{name: f"lightrainer/{name}" for name in ("facade", "lightning_modules", "callbacks")},
}
"""The folders of the wheel, by those of the checkout."""
IN_SDIST = {
    *(*MAPPED, "benchmarks", "docs", "examples", "tests", "typings", "lightrainer.egg-info"),
    *(
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "PKG-INFO",
    ),
    *("README.md", "SECURITY.md", "constraints.txt", "pyproject.toml", "setup.cfg", "setup.py"),
}
MAY_BE_IN_SDIST = {"mkdocs.yml"}
IN_DIST_INFO = {
    "METADATA",
    "RECORD",
    "WHEEL",
    "entry_points.txt",
    "licenses/LICENSE",
    "top_level.txt",
}
TRAINING = """
import os, sys, torch, lightrainer
from torch import nn
assert lightrainer.__file__.startswith(sys.prefix), lightrainer.__file__

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x, labels=None):
        scores = self.layer(x)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

data = [{"x": torch.randn(4), "labels": torch.tensor(index % 2)} for index in range(32)]
settings = dict(max_steps=4, save_steps=2, use_cpu=True, report_to="none", disable_tqdm=True)
args = lightrainer.TrainingArguments("out", **settings)
trainer = lightrainer.Trainer(Net(), args, train_dataset=data, eval_dataset=data)
assert trainer.train().global_step == 4
assert trainer.evaluate()["eval_loss"] > 0
assert sorted(os.listdir("out")) == ["checkpoint-2", "checkpoint-4"]
"""


def sources() -> set[str]:
    """The files that the wheel has to hold, and no others."""
    files = set()
    for folder, name in MAPPED.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".pyi", ".css", ".js", ".md") or path.name == "py.typed":
                files.add(f"{name}/{path.relative_to(ROOT / folder).as_posix()}")
    return files


def check_wheel(wheel: Path) -> None:
    """Its files are those of the folders, and its description has no broken links."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        package_metadata = Parser().parsestr(archive.read(metadata).decode())
    info = metadata.removesuffix("METADATA")
    require(
        {name.removeprefix(info) for name in names if name.startswith(info)},
        IN_DIST_INFO,
        "the wheel's metadata",
    )
    require({name for name in names if not name.startswith(info)}, sources(), "the wheel")
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", str(package_metadata.get_payload()))
    if links:
        raise SystemExit(f"The description has links that lead nowhere on an index: {links}")
    version = re.search(r'__version__ = "(.+)"', (ROOT / "package" / "__init__.py").read_text())
    if version is None or package_metadata["Version"] != version[1]:
        raise SystemExit(
            f"The wheel has version {package_metadata['Version']}, package/__init__.py another one."
        )


def check_sdist(sdist: Path) -> None:
    """Its top level is as listed above."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    require(names - MAY_BE_IN_SDIST, IN_SDIST, "the source distribution")


def require(found: set[str], wanted: set[str], what: str) -> None:
    """End the program where two lists of files differ."""
    if found != wanted:
        raise SystemExit(
            f"{what}: too much {sorted(found - wanted)}, missing {sorted(wanted - found)}"
        )


def train(wheel: Path, folder: Path) -> None:
    """Install the wheel in an empty environment, and train with it."""
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run(
            [python, "-c", ask], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    # The `.pth` files there are not followed, so that the checkout, which is installed there, is
    # not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run(
        [*install, "--disable-pip-version-check", "--ignore-installed", str(wheel)], check=True
    )
    subprocess.run([python, "-c", TRAINING], check=True, cwd=folder)
    completed = subprocess.run(
        [folder / "env" / "bin" / "lightrainer", "--version"], check=True, capture_output=True
    )
    print(f"trained with the installed {completed.stdout.decode().strip()}")


def main() -> None:
    """Check the two files in a folder."""
    folder = Path(sys.argv[1])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as scratch:
        train(wheel.resolve(), Path(scratch))


if __name__ == "__main__":
    main()
