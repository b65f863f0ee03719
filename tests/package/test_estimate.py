"""The command `estimate`: its table, its JSON, and its errors."""

import json

import pytest

from lightrainer.__main__ import main

EIGHT = ("--model", "8B", "--gpus", "64")
PARAMETERS = 8_030_261_248


def run(capsys, *words):
    assert main(["estimate", *words]) == 0
    return capsys.readouterr().out


def test_estimate_prints_the_table(capsys):
    printed = run(capsys, *EIGHT, "--fsdp", "full_shard")
    assert "8,030,261,248 parameters" in printed
    for word in (
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "logits",
        "buffers",
        "total",
    ):
        assert f"\n{word} " in printed
    assert "fits into 80 GiB" in printed


def test_estimate_json_has_bytes_and_the_recommended_strategy(capsys):
    content = json.loads(run(capsys, *EIGHT, "--fsdp", "full_shard", "--json"))
    (estimate,) = content["estimates"]
    assert content["best"] is None
    memory = estimate["memory"]
    assert memory["parameters"] == 4 * PARAMETERS / 64
    assert memory.pop("total") == pytest.approx(sum(memory.values()))
    assert (estimate["parameters"], estimate["fits"]) == (PARAMETERS, True)
    assert json.loads(run(capsys, *EIGHT, "--compare", "--json"))["best"] == "FSDP shard_grad_op"


def test_estimate_prints_the_comparison(capsys):
    printed = run(capsys, *EIGHT, "--compare")
    for name in ("DDP", "FSDP full_shard", "FSDP shard_grad_op", "TP 8", "CP 8", "checkpointing"):
        assert name in printed
    assert "Recommended: FSDP shard_grad_op." in printed
    assert "None fits" in run(capsys, *EIGHT, "--gpu-memory", "1", "--compare")


WORDS = [
    (["--gpus", "-1"], "--gpus: '-1' has to be at least 1"),
    (["--gpus", "64", "--tp", "7"], "tp=7 does not divide gpus=64"),
    (["--optim", "adamw_torhc"], "--optim: invalid choice: 'adamw_torhc'"),
    (["--fsdp", "fullshard"], "--fsdp: invalid choice: 'fullshard'"),
    (["--compare", "--gradient_checkpointing"], "leave out --gradient_checkpointing"),
    (["--deepspeed", "3"], "unrecognized arguments: --deepspeed"),
    (["--model", "not/there"], "model='not/there': not/there/config.json does not exist"),
    (None, "the following arguments are required: --model"),
]


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_estimate_refuses_impossible_options(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["estimate"] if words is None else ["estimate", "--model", "8B", *words])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert message in printed.err
    assert "Traceback" not in printed.err
