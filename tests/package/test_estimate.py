"""The command `estimate`: its table, its JSON, its picture, and what it says of numbers that cannot be."""

import json

import pytest

from lightrainer.__main__ import main

SEVEN = ["estimate", "--params", "7e9", "--gpus", "64"]


def run(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def as_json(capsys, *words):
    return json.loads(run(capsys, *words, "--json"))["estimates"][0]


def test_the_table(capsys):
    printed = run(capsys, *SEVEN, "--fsdp", "full_shard", "--bandwidth", "450", "--tflops", "400")
    assert "7,000,000,000 parameters" in printed
    for word in ("parameters", "gradients", "optimizer states", "activations", "communication buffers", "total"):
        assert f"\n{word}" in printed
    assert "all-gather of parameters, forward" in printed
    assert "sending:" in printed
    assert "fits into 80.00 GiB" in printed


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [("0", 120), ("1", 31.4), ("2", 16.6), ("3", 1.9)], ids=["none", "os", "os+g", "os+g+p"]
)
def test_the_figures_of_the_paper_on_zero(stage, gigabytes, capsys):
    """Rajbhandari et al., figure 1: 7.5 billion parameters on 64 devices, mixed precision, Adam."""
    memory = as_json(capsys, "estimate", "--params", "7.5e9", "--gpus", "64", "--deepspeed", stage)["memory"]
    states = sum(memory[name] for name in ("parameters", "gradients", "optimizer", "master"))
    assert states / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_the_traffic_of_the_paper_on_zero(capsys):
    """Section 7: twice the parameters without sharding and up to stage 2, three times in stage 3."""
    sent = {stage: as_json(capsys, *SEVEN, "--deepspeed", str(stage))["sent"] for stage in range(4)}
    volume = 2 * 7e9 * 63 / 64  # bytes of a pass over all parameters in 16 bits
    assert [sent[stage] / volume for stage in range(4)] == pytest.approx([2, 2, 2, 3])


def test_offload_moves_states_to_the_host(capsys):
    stays = as_json(capsys, *SEVEN, "--fsdp", "full_shard")
    moved = as_json(capsys, *SEVEN, "--fsdp", "full_shard offload auto_wrap")
    kept = [stays["memory"][name] for name in ("parameters", "gradients", "optimizer")]
    assert moved["memory"]["host"] == sum(kept)
    assert moved["memory"]["total"] == stays["memory"]["total"] - sum(kept)
    assert moved["copied"] > 0 == stays["copied"]
    assert as_json(capsys, *SEVEN, "--deepspeed", "3", "--offload", "optimizer", "param")["memory"]["parameters"] == 0


def test_hybrid_sharding_stays_within_machines(capsys):
    found = as_json(capsys, *SEVEN, "--fsdp", "hybrid_shard")["communication"]
    assert [(one["kind"], one["group"], one["across"]) for one in found] == [
        ("all-gather", 8, False),
        ("all-gather", 8, False),
        ("reduce-scatter", 8, False),
        ("all-reduce", 8, True),
    ]


def test_the_comparison(capsys, tmp_path):
    picture = tmp_path / "memory.png"
    printed = run(capsys, *SEVEN, "--compare", "--plot", str(picture))
    for name in ("DDP", "FSDP full_shard", "FSDP hybrid_shard", "ZeRO-1", "ZeRO-3", "TP 8", "CP 8", "offload"):
        assert name in printed
    assert "Take: " in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "None fits" in run(capsys, "estimate", "--params", "1e12", "--gpus", "8", "--gpu-memory", "1", "--compare")


WORDS = [
    (["--gpus", "-1"], "--gpus: '-1' has to be at least 1"),
    (["--gpus", "64", "--tp", "7"], "tp=7 times cp=1 does not divide gpus=64"),
    (["--gpus", "12", "--nodes", "5"], "nodes=5 does not give gpus=12"),
    (["--optim", "adamw_torhc"], "--optim: invalid choice: 'adamw_torhc'"),
    (["--fsdp", "fullshard"], "fsdp='fullshard'"),
    (["--fsdp", "full_shard", "--deepspeed", "3"], "fsdp and deepspeed exclude each other"),
    (["--deepspeed", "2", "--offload", "parameters"], "offload=parameters needs deepspeed=3"),
    (["--sequence-parallel"], "pass tp too"),
    (["--model", "not/there"], "model='not/there'"),
    (None, "give the number of parameters (--params 7e9)"),
]


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_what_cannot_be_is_named(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["estimate"] if words is None else ["estimate", "--params", "7e9", *words])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert message in printed.err
    assert "Traceback" not in printed.err
