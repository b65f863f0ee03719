"""Reports to the controller of a Kubeflow job, which is played by a server on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lightrainer.callbacks import reporting_callbacks
from lightrainer.callbacks.loggers import kubeflow
from lightrainer.callbacks.loggers.kubeflow import KubeflowCallback
from lightrainer.callbacks.state import TrainerControl, TrainerState


@pytest.fixture
def reports(monkeypatch, tmp_path):
    """Return the reports that the controller gets, each with its token."""
    heard = []

    class Controller(BaseHTTPRequestHandler):
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.headers["Authorization"], content["trainerStatus"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    (tmp_path / "token").write_text("secret\n")
    with HTTPServer(("127.0.0.1", 0), Controller) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(
            "KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{server.server_port}/status"
        )
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
        yield heard
        server.shutdown()


def train(steps=4, **state):
    callback, control = KubeflowCallback(), TrainerControl()
    now = TrainerState(max_steps=steps, **state)
    callback.on_train_begin(None, now, control)
    for now.global_step in range(1, steps + 1):
        callback.on_log(None, now, control, logs={"loss": 1 / now.global_step, "note": "text"})
        callback.on_step_end(None, now, control)
    callback.on_train_end(None, now, control)


def test_progress_and_metrics_arrive(reports, monkeypatch):
    monkeypatch.setattr(kubeflow, "INTERVAL", 1e-9)
    train()
    assert {token for token, _ in reports} == {"Bearer secret"}
    assert [said["progressPercentage"] for _, said in reports] == [0, 25, 50, 75, 99, 100]
    assert {"name": "loss", "value": "0.5"} in reports[2][1]["metrics"]
    assert reports[-1][1]["estimatedRemainingSeconds"] == 0


def test_reports_are_not_more_frequent_than_the_controller_likes(reports):
    train(steps=50)
    assert [said["progressPercentage"] for _, said in reports] == [0, 100]


def test_kubeflow_unreachable_controller_is_not_an_error(reports, monkeypatch):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:9/status")
    monkeypatch.setattr(kubeflow, "TIMEOUT", 0.1)
    train(steps=1)
    assert not reports


def test_kubeflow_callback_is_added_where_there_is_a_controller(monkeypatch):
    assert KubeflowCallback not in reporting_callbacks("none")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://controller")
    assert reporting_callbacks("none") == reporting_callbacks("kubeflow") == [KubeflowCallback]
    monkeypatch.setenv("DISABLE_KUBEFLOW_INTEGRATION", "TRUE")
    assert reporting_callbacks("none") == []
