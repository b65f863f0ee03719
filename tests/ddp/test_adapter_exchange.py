"""Checkpoints that two processes have sharded, of models with and without adapters, go from
library to library.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.processes.starting import NEWEST, finished_ranks
from lightrainer.lightning_modules.checkpoints import problems

pytest.importorskip("peft")

SCRIPT = HELPERS / "ddp" / "adapter_exchange_script.py"
BESIDE = Path(sys.prefix) / "deepspeed"
FSDP = ["fsdp1", "fsdp1_parts", "fsdp2", "fsdp2_parts"]
PLAIN = ["fsdp1-plain", "fsdp1_parts-plain", "fsdp2_parts-plain"]
CASES = [*FSDP, *PLAIN, *(["deepspeed2", "deepspeed3"] if BESIDE.is_dir() else [])]
OTHERS = {
    "transformers": CASES,
    **({"newest": [*FSDP, "fsdp1_parts-plain"]} if NEWEST.is_dir() else {}),
}
"""Versions of the reference."""
READ = [(case, other, "lightrainer") for other, cases in OTHERS.items() for case in cases]
READ.append(("ddp:fsdp2", "lightrainer", "lightrainer"))  # states by name, without FSDP
WRITTEN = [
    (case, "lightrainer", other)
    for other, cases in OTHERS.items()
    for case in [*cases, "ddp-plain:fsdp1-plain", "ddp-plain:fsdp2-plain"]
    if not case.startswith("fsdp1")
]
HALF_READ = [
    ("fsdp1_parts-plain", first, other) for other in OTHERS for first in ("lightrainer", other)
]
"""By accelerate, which under version 1 of FSDP takes no states of the optimizer from parts, its
own included.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All libraries train without a break, then each resumes checkpoints of the others."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("exchange")
    runs = {
        name: [run_of(*row) for row in [*READ, *WRITTEN, *HALF_READ] if row[2] == name]
        for name in LIBRARIES
    }
    for name, cases in OTHERS.items():
        start(folder, name, cases)
    start(folder, "lightrainer", [*CASES, "fsdp2-plain", *runs["lightrainer"]])
    for name in OTHERS:
        start(folder, name, runs[name])
    return folder


LIBRARIES = ("lightrainer", *OTHERS)


def start(folder: Path, name: str, cases: list[str]) -> None:
    library = "transformers"  # PEFT imports it also where ours trains
    more = {}
    if name == "newest":
        library = "newest"
    elif BESIDE.is_dir():
        library = "transformers and deepspeed"
        more["BESIDE"] = str(BESIDE)
    finished_ranks(
        SCRIPT,
        name,
        str(folder),
        *cases,
        library=library,
        log=folder / "log.txt",
        seconds=400,
        **more,
    )


def run_of(case, first, second):
    """Its name: a case, the library whose checkpoint it starts from, and the case of that, if it
    is another.
    """
    now, _, before = case.partition(":")
    return ":".join(filter(None, (now, first, before)))


def losses(folder, library, run):
    return json.loads((folder / library / run / "losses.json").read_text())


def weights(folder, library, run):
    (file,) = (folder / library / run / "saved").glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize(("case", "first", "second"), [*READ, *WRITTEN])
def test_adapter_exchange_resumption_is_exact(folder, case, first, second):
    """From the other library's checkpoint of the third of six steps, in a model whose weights began
    differently.

    The last losses are those of weights that the optimizer's state has moved.
    """
    run, before = run_of(case, first, second), case.rpartition(":")[2]
    straight = losses(folder, first, before)
    assert losses(folder, second, run) == pytest.approx(straight, rel=1e-5)
    if (folder / second / before).is_dir():
        assert losses(folder, second, before) == pytest.approx(straight, rel=1e-5)
    if "_parts" in before:  # the reference writes no weights but parts
        return
    expected, actual = weights(folder, first, before), weights(folder, second, run)
    assert actual.keys() == expected.keys()
    assert all(actual[name].allclose(expected[name], atol=1e-5) for name in expected)


@pytest.mark.parametrize(("case", "first", "second"), HALF_READ)
def test_adapter_exchange_reference_reads_weights_of_fsdp1_shards(folder, case, first, second):
    """From those that it wrote itself, too: ours give it the same numbers."""
    straight, resumed = (
        losses(folder, first, case),
        losses(folder, second, run_of(case, first, second)),
    )
    assert resumed[:4] == pytest.approx(straight[:4], rel=1e-5)
    assert resumed[4:] != pytest.approx(straight[4:], rel=1e-3)
    assert resumed == losses(folder, second, run_of(case, second, second))


@pytest.mark.parametrize("name", ["optimizer.bin", "pytorch_model_fsdp.bin"])
def test_files_for_the_reference_are_written_and_verified(folder, name, tmp_path):
    """Of adapters under version 2, the two that its own checkpoints have, and no second state of
    the optimizer.
    """
    for library in LIBRARIES:
        assert (folder / library / "fsdp2" / "checkpoint-6" / name).is_file()
    checkpoint = Path(
        shutil.copytree(
            folder / "lightrainer" / "fsdp2" / "checkpoint-6", tmp_path / "checkpoint-6"
        )
    )
    assert not (checkpoint / "optimizer.pt").exists()
    assert problems(checkpoint) == []
    os.truncate(checkpoint / name, (checkpoint / name).stat().st_size - 100)
    assert f"{name} " in "; ".join(problems(checkpoint))
