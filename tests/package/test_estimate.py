"""The command `estimate`: its table, its JSON, and its errors."""

import json

import pytest

from lightrainer.__main__ import main

CONFIG = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "hidden_act": "silu",
}
PARAMETERS = 6_738_415_616
"""Those of Llama 2 7B."""


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "tie_word_embeddings": False}))
    return str(file)


def run(capsys, *words):
    assert main(["estimate", *words]) == 0
    return capsys.readouterr().out


def test_estimate_prints_the_table(capsys, config):
    printed = run(capsys, config, "--gpus", "64", "--fsdp", "full_shard")
    assert "6,738,415,616 parameters" in printed
    for word in (
        "parameters",
        "gradients",
        "optimizer states",
        "activations",
        "communication buffers",
        "total",
    ):
        assert f"\n{word}" in printed
    assert "fits into 80.00 GiB" in printed


def test_json_has_bytes(capsys, config):
    printed = run(capsys, config, "--gpus", "64", "--fsdp", "full_shard", "--json")
    (estimate,) = json.loads(printed)
    memory = estimate["memory"]
    assert memory["parameters"] == 4 * PARAMETERS / 64
    assert memory.pop("total") == pytest.approx(sum(memory.values()))
    assert estimate["fits"] is True
    strategies = json.loads(run(capsys, config, "--gpus", "64", "--compare", "--json"))
    assert next(each["strategy"] for each in strategies if each["fits"]) == "FSDP shard_grad_op"


def test_estimate_prints_the_comparison(capsys, config):
    printed = run(capsys, config, "--gpus", "64", "--compare")
    for name in ("DDP", "FSDP full_shard", "FSDP shard_grad_op", "TP 8", "checkpointing"):
        assert name in printed
    assert "Recommended: FSDP shard_grad_op." in printed
    assert "None fits" in run(capsys, config, "--gpus", "8", "--gpu-memory", "1", "--compare")


WORDS = [
    (["--gpus", "-1"], "--gpus: '-1' has to be at least 1"),
    (["--gpus", "64", "--tp", "7"], "tp=7 does not divide gpus=64"),
    (["--optim", "adamw_torhc"], "--optim: invalid choice: 'adamw_torhc'"),
    (["--fsdp", "fullshard"], "--fsdp: invalid choice: 'fullshard'"),
    (["--deepspeed", "3"], "unrecognized arguments: --deepspeed"),
]


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_wrong_options_are_refused(words, message, capsys, config):
    assert message in refusal(capsys, config, *words)


def test_a_missing_model_is_refused(capsys, tmp_path):
    assert "model='not/there': not/there/config.json does not exist" in refusal(capsys, "not/there")
    assert "arguments are required: MODEL" in refusal(capsys)


def refusal(capsys, *words):
    """What the command writes to stderr when it exits with status 2."""
    with pytest.raises(SystemExit) as stop:
        main(["estimate", *words])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert "Traceback" not in printed.err
    return printed.err
