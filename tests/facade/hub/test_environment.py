"""Fresh processes that know the Hub by nothing but their environment: HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE.
"""

import json

import pytest

from helpers import HELPERS
from helpers.hub.hub_server import TOKEN, HubServer
from helpers.processes.starting import forked_ranks

SCRIPT = HELPERS / "hub" / "hub_script.py"
NAME = "me/model"


@pytest.fixture
def server():
    with HubServer() as running:
        yield running


def start(url, folder, **arguments):
    """Run the script; exit codes, output, and what each process wrote. Nothing it begins with
    has read them yet.
    """
    environment = {
        "HF_ENDPOINT": url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    environment |= {"HF_HOME": str(folder.parent / "hf_home")}
    options = {"log": folder.with_suffix(".log"), "seconds": 240}
    codes, output = forked_ranks(
        SCRIPT, str(folder), json.dumps(arguments), **options, **environment
    )
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    return codes, output, results


def test_hub_environment_in_two_processes(server, tmp_path):
    """Only the first one uploads, and both resume from what they download."""
    options = {
        "push_to_hub": True,
        "hub_model_id": NAME,
        "save_strategy": "epoch",
        "hub_strategy": "checkpoint",
    }
    code, output, results = start(server.url, tmp_path / "out", **options)
    assert code == [0, 0], output
    assert TOKEN not in output
    assert [(each["hub_model_id"], each["pushed"], each["steps"]) for each in results] == [
        (NAME, True, 2),
        (None, False, 2),
    ]
    assert len(server.asked("repos/create")) == 1
    files = set(server.repos[NAME].files())
    assert {"last-checkpoint/rng_state_0.pth", "last-checkpoint/rng_state_1.pth"} <= files
    assert server.repos[NAME].messages()[-1] == "Training in progress, epoch 1, checkpoint"

    again = {**options, "num_train_epochs": 2, "resume": "last-checkpoint"}
    code, output, results = start(server.url, tmp_path / "second", **again)
    assert code == [0, 0], output
    assert [each["taken"] for each in results] == [[3, 4]] * 2
    assert [each["checkpoints"] for each in results] == [["checkpoint-4"]] * 2
