"""Fresh processes that know the Hub by nothing but their environment: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import TOKEN, HubServer

SCRIPT = Path(__file__).with_name("hub_script.py")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
NAME = "me/model"


@pytest.fixture
def server():
    with HubServer() as running:
        yield running


def start(url, folder, *, launcher=(), variables=None, **arguments):
    """Run the script; its output, and what each process wrote."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HOME": str(folder.parent / "hf_home"), **(variables or {})}
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    return done.returncode, done.stdout + done.stderr, results


def test_by_the_environment_alone(server, tmp_path):
    given = {"push_to_hub": True, "hub_model_id": NAME, "save_strategy": "epoch", "hub_strategy": "checkpoint"}
    code, said, (result,) = start(server.url, tmp_path / "out", **given)
    assert code == 0, said
    assert result["hub_model_id"] == NAME
    assert {"model.safetensors", "README.md", "last-checkpoint/optimizer.pt"} <= set(server.repos[NAME].files())
    assert TOKEN not in said
    assert "it/s" not in said, "bars of the uploads"


def test_offline_is_said_at_once(server, tmp_path):
    offline = {"HF_HUB_OFFLINE": "1"}
    code, said, results = start(server.url, tmp_path / "out", variables=offline, push_to_hub=True, hub_model_id=NAME)
    assert code != 0
    assert results == []
    assert "HF_HUB_OFFLINE=1 keeps this process off the Hub" in said
    assert server.requests == []


def test_offline_a_card_is_written(server, tmp_path):
    code, said, _ = start(server.url, tmp_path / "out", variables={"HF_HUB_OFFLINE": "1"}, hub_model_id=NAME)
    assert code == 0, said
    assert "# out\n" in (tmp_path / "out" / "README.md").read_text()
    assert server.requests == []


def test_two_processes(server, tmp_path):
    """The first one uploads, nobody else does; and both go on from what they download."""
    given = {"push_to_hub": True, "hub_model_id": NAME, "save_strategy": "epoch", "hub_strategy": "checkpoint"}
    code, said, results = start(server.url, tmp_path / "out", launcher=TORCHRUN, **given)
    assert code == 0, said
    assert [(each["hub_model_id"], each["pushed"], each["steps"]) for each in results] == [
        (NAME, True, 2),
        (None, False, 2),
    ]
    assert len(server.asked("repos/create")) == 1
    files = set(server.repos[NAME].files())
    assert {"last-checkpoint/rng_state_0.pth", "last-checkpoint/rng_state_1.pth"} <= files
    assert server.repos[NAME].messages()[-1] == "Training in progress: step 2, checkpoint"

    again = {**given, "num_train_epochs": 2, "resume": "last-checkpoint"}
    code, said, results = start(server.url, tmp_path / "second", launcher=TORCHRUN, **again)
    assert code == 0, said
    assert [each["taken"] for each in results] == [[3, 4]] * 2
    assert [each["checkpoints"] for each in results] == [["checkpoint-4"]] * 2
