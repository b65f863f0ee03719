"""Names on the pages exist."""

import importlib.util
import inspect
import re
from pathlib import Path

import optuna
import yaml
from packaging.version import Version

import lightrainer
from helpers.scripts.page_runner import blocks
from lightrainer import Trainer
from lightrainer.facade.search.search_run import OPTIONS
from lightrainer.lightning_modules.common.enums import OptimizerNames
from lightrainer.tools.estimate.estimation import SHARDING
from lightrainer.tools.sweep.command import _make_parser

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name):
    return (DOCS / "user" / f"{name}.md").read_text(encoding="utf-8")


def test_module_table_names_public_classes():
    text, _, _ = page("lightning").partition("### What resumes with what")
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert len(named) == 6
    assert set(named) <= set(lightrainer.__all__)


def test_callbacks_that_are_named_can_be_imported():
    named = set(re.findall(r"\b([A-Z]\w+(?:Callback|Bridge))\b", page("progress-and-reports")))
    assert len(named) >= 9
    assert named <= set(lightrainer.__all__)


def test_optimizers_of_the_calculator_exist():
    table = page("scaling").split("S is the size of the optimizer states")[1].split("##")[0]
    named = re.findall(r"`([a-z0-9_*]+)`", "".join(re.findall(r"^\| (`[^|]*`) \|", table, re.M)))
    assert len(named) > 15
    for optim in named:
        assert optim == "optim" or [
            name for name in OptimizerNames if name.value.startswith(optim.rstrip("*"))
        ]
    assert {"full_shard", "shard_grad_op"} <= set(SHARDING)


def test_options_of_the_sweep_exist():
    help_text = _make_parser().format_help()
    named = set(re.findall(r"`(--[a-z-]+)", page("search"))) - {"--width"}
    assert len(named) > 6
    assert [option for option in named if option not in help_text] == []


def test_keywords_of_the_search_are_taken():
    rows = re.findall(r"^\| (`.*?) \|", page("search"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    parameters = set(inspect.signature(Trainer.hyperparameter_search).parameters)
    optunas = {*inspect.signature(optuna.create_study).parameters}
    optunas |= {*inspect.signature(optuna.study.Study.optimize).parameters}
    assert len(named) > 15
    assert named <= parameters | optunas | set(OPTIONS)


def test_cluster_page_sets_variables_that_commands_read():
    """SLURM, Kubernetes and a shell start the same file, and set all of its variables."""
    files = {
        code.partition("# ")[2].partition("\n")[0]: code
        for _, code, _, _ in blocks(DOCS / "user" / "clusters.md")
    }
    read = set(re.findall(r"\$\{?([A-Z]+)", files["start_node.sh"]))
    assert len(read) == 5
    manifest = list(yaml.safe_load_all(files["train.yaml"]))[1]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert {variable["name"] for variable in manifest["env"]} == read
    assert manifest["command"] == ["bash", "start_node.sh"]
    job = files["job.sh"]
    exported = re.findall(r"^export (.*)", job, re.MULTILINE)
    assert {name for line in exported for name in re.findall(r"\b([A-Z]+)=", line)} == read
    assert job.startswith("#!/bin/bash\n")
    assert "bash start_node.sh" in job


def test_tested_versions_are_the_lowest_allowed_and_the_pins():
    """`make test-oldest` and `python docs/scripts/versions_table.py` follow a bound that has
    changed.
    """
    spec = importlib.util.spec_from_file_location(
        "versions_table", DOCS / "scripts" / "versions_table.py"
    )
    spec.loader.exec_module(tool := importlib.util.module_from_spec(spec))
    rows = (
        tool.PAGE.read_text(encoding="utf-8")
        .partition(tool.HEAD)[2]
        .partition(tool.END)[0]
        .splitlines()
    )
    cells = [row.strip("| ").split(" | ") for row in rows]
    lowest, pinned, newest = ({name: versions[at] for name, *versions in cells} for at in range(3))
    bounds, pins = tool.bounds(), tool.pins(DOCS.parent / "constraints.txt")
    as_versions = lambda found: {name: Version(version) for name, version in found.items()}
    assert as_versions(lowest) == as_versions(bounds)
    assert pinned == {name: pins.get(name, "") for name in bounds}
    assert all(
        Version(version) >= Version(pinned[name] or lowest[name])
        for name, version in newest.items()
    )
