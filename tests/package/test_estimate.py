"""The command `estimate`: its table, its JSON, its picture, and what it says of numbers that
cannot be.
"""

import json

import pytest

from lightrainer.__main__ import main

SEVEN = ["estimate", "--params", "7e9", "--gpus", "64"]


def run(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_estimate_prints_the_table(capsys):
    printed = run(capsys, *SEVEN, "--fsdp", "full_shard")
    assert "7,000,000,000 parameters" in printed
    for word in (
        "parameters",
        "gradients",
        "optimizer states",
        "activations",
        "communication buffers",
        "total",
    ):
        assert f"\n{word}" in printed
    assert "all-gather of parameters, forward" in printed
    assert "fits into 80.00 GiB" in printed


def test_json_has_bytes_and_the_recommended_strategy(capsys):
    found = json.loads(run(capsys, *SEVEN, "--fsdp", "full_shard", "--json"))
    (one,) = found["estimates"]
    assert found["best"] is None
    assert one["memory"]["parameters"] == 4 * 7e9 / 64
    assert one["sent"] == pytest.approx(sum(each["sent"] for each in one["communication"]))
    assert json.loads(run(capsys, *SEVEN, "--compare", "--json"))["best"] == "FSDP shard_grad_op"


def test_estimate_prints_the_comparison(capsys, tmp_path):
    picture = tmp_path / "memory.png"
    printed = run(capsys, *SEVEN, "--compare", "--plot", str(picture))
    for name in ("DDP", "FSDP full_shard", "FSDP shard_grad_op", "TP 8", "checkpointing"):
        assert name in printed
    assert "Recommended: " in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "None fits" in run(
        capsys, "estimate", "--params", "1e12", "--gpus", "8", "--gpu-memory", "1", "--compare"
    )


WORDS = [
    (["--gpus", "-1"], "--gpus: '-1' has to be at least 1"),
    (["--gpus", "64", "--tp", "7"], "tp=7 does not divide gpus=64"),
    (["--optim", "adamw_torhc"], "--optim: invalid choice: 'adamw_torhc'"),
    (["--fsdp", "fullshard"], "fsdp='fullshard'"),
    (["--fsdp", "full_shard offload"], "fsdp='full_shard offload'"),
    (["--deepspeed", "3"], "unrecognized arguments: --deepspeed"),
    (["--model", "not/there"], "model='not/there'"),
    (None, "pass the number of parameters (--params 7e9)"),
]


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_estimate_that_cannot_be_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["estimate"] if words is None else ["estimate", "--params", "7e9", *words])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert message in printed.err
    assert "Traceback" not in printed.err
