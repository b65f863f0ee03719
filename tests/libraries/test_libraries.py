"""TRL, sentence-transformers, PEFT and SetFit train on ours as on the reference, bit for bit, in
unmodified scripts.
"""

import importlib.util
import json
from importlib.metadata import version

import pytest

from helpers.libraries.library_runs import ASIDE, COMPARED, TWO_PROCESSES, Both, execute, train_both

pytestmark = pytest.mark.libraries  # minutes, in a separate environment

SCRIPTS = {
    "trl_sft": ["trl", "peft"],
    "trl_preferences": ["trl", "peft"],
    "trl_online": ["trl"],
    "trl_accumulated": ["trl", "peft"],
    "trl_experimental": ["trl"],
    "sentence_embeddings": ["sentence_transformers"],
    "peft_adapters": ["peft"],
    "setfit_classes": ["setfit", "sentence_transformers"],
}
OLDER_TRL = "trl-1.9"
VARIANTS = [(script, None) for script in SCRIPTS] + [
    (script, OLDER_TRL) for script in SCRIPTS if "trl_" in script
]
# In several processes the reference has no cross encoder, and shuffles two datasets in the same way
# in each epoch.
TOGETHER = {
    "trl_sft": [],
    "trl_preferences": [],
    "trl_online": [],
    "sentence_embeddings": ["evaluator", "cached"],
}
# 5.3.0 divides by the number of micro-batches twice; with this runner it does not, as later
# versions do not either.
REPAIRED = ("trl_accumulated", "trl_experimental")


FSDP2 = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
FSDP2 |= {"fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_cpu_ram_efficient_loading": False}


def need(script, aside=None):
    missing = [name for name in SCRIPTS[script] if importlib.util.find_spec(name) is None]
    if aside is not None and not (ASIDE / aside).is_dir():
        missing.append(aside)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; see `make test-libraries`")


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda given: " of ".join(filter(None, given)))
def both(request, tmp_path_factory):
    script, aside = request.param
    need(script, aside)
    runners = Both(["repaired_reference.py"] if script in REPAIRED else [], ["-m", "lightrainer"])
    return train_both(tmp_path_factory.mktemp(script), runners, script, aside=aside)


@pytest.fixture(scope="module", params=TOGETHER)
def both_in_two_processes(request, tmp_path_factory):
    script = request.param
    need(script)
    runners = Both(TWO_PROCESSES, [*TWO_PROCESSES, "-m", "lightrainer"])
    return train_both(tmp_path_factory.mktemp(script), runners, script, *TOGETHER[script])


def test_library_versions_are_the_expected_ones(both, request):
    """They are printed at the end, with what was compared."""
    script, aside = request.node.callspec.params["both"]
    kinds = both.ours.kinds()
    versions = [both.ours.figures(kind)["versions"] for kind in kinds]
    assert all(installed == versions[0] for installed in versions)
    assert versions[0]["transformers"] == "5.3.0"
    if "trl_" in script:
        assert versions[0]["trl"].startswith("1.9." if aside == OLDER_TRL else version("trl"))
        assert not version("trl").startswith("1.9.")
    trainings = (
        f"{len(kinds)} trainings, {sum(len(both.ours.figures(kind)['logs']) for kind in kinds)} "
        "logs"
    )
    files = f"{len(both.theirs.files('*.safetensors'))} files of weights"
    COMPARED.append(
        f"{script}: {trainings}, {files}; {', '.join(map(' '.join, versions[0].items()))}"
    )


def losses(trained, kind):
    return [log["loss"] for log in trained.figures(kind)["logs"] if "loss" in log]


def resumes_exactly(trained, kind):
    """Whether the resumed training of a kind has the losses of the uninterrupted one."""
    return losses(trained, f"{kind}/again") == losses(trained, kind)


def only_ours_resumes_exactly(both, kind):
    """Distillation draws other random numbers after a resumption of the reference; trainers whose
    own state is in no checkpoint resume exactly on neither.
    """
    return resumes_exactly(both.ours, kind) and not resumes_exactly(both.theirs, kind)


def assert_same_numbers(both):
    assert both.ours.kinds() == both.theirs.kinds() != []
    for kind in both.theirs.kinds():
        theirs, ours = both.theirs.figures(kind), both.ours.figures(kind)
        assert (theirs.pop("trainer_of"), ours.pop("trainer_of")) == (
            "transformers",
            "lightrainer",
        )
        # of what was loaded; the reference loads PEFT early
        versions = theirs.pop("versions"), ours.pop("versions")
        assert versions[1].items() <= versions[0].items()
        if kind.endswith("again"):
            uninterrupted = kind.removesuffix("/again")
            if only_ours_resumes_exactly(both, uninterrupted):
                assert ours["norms"] == both.ours.figures(uninterrupted)["norms"], kind
                continue
            # 5.3.0 divides the loss since the resumption by all steps; later versions do not
            half, whole = theirs["logs"][-1].pop("train_loss"), ours["logs"][-1].pop("train_loss")
            assert whole == pytest.approx(2 * half, abs=1e-12)
        assert ours == theirs, kind


def assert_same_files(both):
    """Bit for bit where they are tensors; ours has two more in a checkpoint, and one for the weights
    of losses such as `SoftmaxLoss`, which the reference leaves out.
    """
    from safetensors.torch import load_file

    additional = {
        name for name in both.ours.files() if name.endswith(("_manifest.json", "loss_curve.svg"))
    }
    additional |= {name for name in both.ours.files() if "data_state_" in name}
    additional |= {name for name in both.ours.files() if name.endswith("outside_model.pt")}
    assert both.ours.files() - additional == both.theirs.files()
    weights = both.theirs.files("*.safetensors")
    assert weights
    for name in weights:
        expected = both.theirs.folder / name
        kind = name.partition("/")[0]
        is_resumed = "/again/" in name or "/resumed/" in name
        if is_resumed and only_ours_resumes_exactly(both, kind):
            uninterrupted = name.replace("/again/", "/").replace("/resumed/", "/final/")
            expected = both.ours.folder / uninterrupted
        theirs, ours = load_file(expected), load_file(both.ours.folder / name)
        assert theirs.keys() == ours.keys(), name
        assert all(theirs[key].equal(ours[key]) for key in theirs), name


def test_library_numbers_equal_the_reference(both):
    """Losses, norms of gradients, rates, metrics, rewards, norms of weights: of the training and
    of the one resumed.
    """
    assert_same_numbers(both)


def test_library_files_equal_the_reference(both):
    """In checkpoints and saved models, in the formats of the libraries."""
    assert_same_files(both)


def test_different_trainings_differ(both):
    """The control: other trainings of the same script have other numbers, which change from step
    to step.
    """
    kinds = [kind for kind in both.ours.kinds() if not kind.endswith(("again", "after"))]
    logs = [both.ours.figures(kind)["logs"] for kind in kinds]
    names = ("grad_norm", "loss/policy_avg")  # PPO logs no norm
    curves = [[entry[name] for entry in log for name in names if name in entry] for log in logs]
    assert all(len(set(log)) > 1 for log in curves)
    assert len({tuple(log) for log in curves}) == len(kinds)


def test_library_numbers_equal_the_reference_in_two_processes(both_in_two_processes):
    assert_same_numbers(both_in_two_processes)


def test_library_files_equal_the_reference_in_two_processes(both_in_two_processes):
    assert_same_files(both_in_two_processes)


def test_two_adapters_resumption_is_exact(tmp_path):
    """DPO trains `default` and keeps `ref`, a copy of where it began; the reference loads only
    one of them.
    """
    need("trl_preferences")
    done = execute(["-m", "lightrainer", "trl_two_adapters.py", str(tmp_path)])
    assert done.returncode == 0, done.stdout[-6000:]
    straight, cut = (
        json.loads((tmp_path / place / "figures.json").read_text()) for place in ("straight", "cut")
    )
    assert straight["adapters"] == ["default", "ref"]
    excluded = ("num_tokens", "eval_num_tokens", "train_loss")  # of one call of `train`
    logs = [
        [{k: v for k, v in entry.items() if k not in excluded} for entry in figures["logs"]]
        for figures in (straight, cut)
    ]
    assert logs[0] == logs[1]
    saved = [
        [
            (tmp_path / place / "final" / name / "adapter_model.safetensors").read_bytes()
            for name in ("", "ref")
        ]
        for place in ("straight", "cut")
    ]
    assert saved[0] == saved[1]
    assert saved[0][0] != saved[0][1], "only one of them is trained"


LAUNCHED = {
    "sft": (
        {"distributed_type": "FSDP", "fsdp_config": FSDP2},
        {"fsdp": True},
        "ModelParallelStrategy",
    ),
    "dpo": (
        {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
        {"bf16": True},
        "bf16-mixed",
    ),
}


@pytest.mark.parametrize("kind", LAUNCHED)
def test_launchers_train_as_the_arguments_do(tmp_path, kind):
    """`accelerate launch` and `lightrainer launch` with one file: the weights and logs of
    torchrun and arguments.
    """
    need("trl_sft")
    config, options, shown = LAUNCHED[kind]
    file = tmp_path / "launch.json"
    file.write_text(
        json.dumps({"compute_environment": "LOCAL_MACHINE", "num_processes": 2, **config})
    )
    commands = {
        "arguments": [*TWO_PROCESSES, "-m", "lightrainer"],
        "accelerate": [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            str(file),
            "-m",
            "lightrainer",
        ],
        "lightrainer": ["-m", "lightrainer", "launch", "--config_file", str(file)],
    }
    results = []
    for name, command in commands.items():
        folder = tmp_path / name
        folder.mkdir()
        more = [json.dumps(options)] if name == "arguments" else []
        done = execute([*command, "trl_launched.py", str(folder), kind, *more])
        assert done.returncode == 0, done.stdout[-6000:]
        figures = json.loads((folder / "figures.json").read_text())
        assert figures["trainer_of"] == "lightrainer"
        assert shown in figures["plan"]
        assert ("taken from its variables" in figures["plan"]) == (name != "arguments")
        results.append((figures["logs"], (folder / "model" / "model.safetensors").read_bytes()))
    assert results[0] == results[1] == results[2]


TRL_COMMANDS = {"sft": ["text"], "dpo": ["prompt", "chosen", "rejected"]}
MODEL = (
    "import sys, tiny_models as t; [it.save_pretrained(sys.argv[1]) for it in (t.causal_lm(), "
    "t.tokenizer())]"
)


@pytest.mark.parametrize("command", TRL_COMMANDS)
def test_library_trl_command_line_equals_the_reference(tmp_path, command):
    """`trl sft` and `trl dpo` start `accelerate launch`, which starts Python again: names
    are served there too.
    """
    need("trl_sft")
    model, data = tmp_path / "model", tmp_path / "data"
    assert execute(["-c", MODEL, str(model)]).returncode == 0
    data.mkdir()
    texts = ("sun moon river", "king queen fish", "fire road leaf", "wind bird stone")
    rows = [
        dict(zip(TRL_COMMANDS[command], (*texts[at:], *texts), strict=False)) for at in range(4)
    ] * 4
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (
        f"--model_name_or_path {model} --dataset_name {data} --max_steps 3 --save_steps 3 "
        "--max_length 32 --use_cpu "
    )
    words += (
        "--report_to none --per_device_train_batch_size 2 --logging_steps 1 --learning_rate 1e-3 "
    )
    words += "--bf16 False --dtype float32 --num_processes 1 --output_dir"
    results = []
    for runner, is_ours in (([], False), (["-m", "lightrainer"], True)):
        out = tmp_path / str(is_ours)
        done = execute([*runner, "-m", "trl.cli.main", command, *words.split(), str(out)])
        assert done.returncode == 0, done.stdout[-6000:]
        state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text())
        results.append(
            (
                [entry.get("loss") for entry in state["log_history"]],
                (out / "model.safetensors").read_bytes(),
            )
        )
        assert (out / "checkpoint-3" / "_manifest.json").exists() == is_ours
    assert results[0] == results[1]
    assert len(set(results[0][0])) == 3
