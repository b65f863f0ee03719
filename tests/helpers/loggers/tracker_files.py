"""Read the files that trackers write."""

import csv
import json
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any


def wandb_run(path: Path) -> dict[str, Any]:
    """Name, history, summary and configuration of an offline run, once all of it has been
    written.
    """
    deadline = time.monotonic() + 60
    while "end" not in (run := _read_wandb(path)):
        assert time.monotonic() < deadline, f"{path} has no end"
        time.sleep(0.05)
    return run


def _read_wandb(path: Path) -> dict[str, Any]:
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    run: dict[str, Any] = {
        "history": [],
        "summary": {},
        "config": {},
        "metrics": [],
        "artifacts": [],
    }
    for data in _log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        try:
            record.ParseFromString(data)
        except DecodeError:  # it is being written
            return run
        kind = record.WhichOneof("record_type")
        if kind == "history":
            run["history"].append(_items(record.history.item))
        elif kind == "summary":
            run["summary"].update(_items(record.summary.update))
        elif kind == "config":
            run["config"].update(_items(record.config.update))
        elif kind == "metric":
            run["metrics"].append(record.metric.name or record.metric.glob_name)
        elif kind == "exit":
            run["end"] = True
        elif kind == "artifact":
            run["artifacts"].append((record.artifact.name, list(record.artifact.aliases)))
        elif kind == "run":
            run |= {
                "project": record.run.project,
                "name": record.run.display_name,
                "group": record.run.run_group,
            }
            run["config"].update(_items(record.run.config.update))
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            logged = record.request.log_artifact.artifact
            run["artifacts"].append((logged.name, list(logged.aliases)))
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB; each part has a checksum, a length and
    whether it is the last.
    """
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts = (parts if kind in (3, 4) else b"") + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts


def mlflow_runs(uri: str) -> list[dict[str, Any]]:
    """All runs of a store, oldest first."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiments = {listed.experiment_id: listed.name for listed in client.search_experiments()}
    runs = client.search_runs(list(experiments), order_by=["attributes.start_time"])
    return [
        {
            "experiment": experiments[run.info.experiment_id],
            "name": run.info.run_name,
            "id": run.info.run_id,
            "status": run.info.status,
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": {
                name: [
                    (entry.step, entry.value)
                    for entry in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
            "artifact_uri": run.info.artifact_uri.removeprefix("file://"),
            "artifacts": [listed.path for listed in client.list_artifacts(run.info.run_id)],
        }
        for run in runs
    ]


def dvclive_metrics(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each metric."""
    root = folder / "plots" / "metrics"
    series = {}
    for path in root.rglob("*.tsv"):
        with path.open(newline="") as file:
            name = str(path.relative_to(root).with_suffix(""))
            series[name] = [
                (int(row["step"]), float(row[path.stem]))
                for row in csv.DictReader(file, delimiter="\t")
            ]
    return series


def trackio_logs(folder: Path, project: str) -> list[tuple[str, dict[str, Any]]]:
    """(run, values) of each log of a project."""
    with closing(sqlite3.connect(folder / f"{project}.db")) as connection:
        rows = connection.execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
    return [(run, json.loads(values)) for run, values in rows]


def comet_experiment(archive: Path) -> dict[str, Any]:
    """Metrics and parameters of an experiment that was kept offline."""
    with zipfile.ZipFile(archive) as opened:
        rows = [json.loads(line) for line in opened.read("messages.json").decode().splitlines()]
    metrics = [row["payload"]["metric"] for row in rows if row["type"] == "metric_msg"]
    params = [
        row["payload"].get("param") or row["payload"]["params"]
        for row in rows
        if row["type"] == "parameter_msg"
    ]
    return {
        "metrics": [
            (entry["metricName"], entry["step"], entry["epoch"], entry["metricValue"])
            for entry in metrics
            if entry["metricName"].startswith(("train/", "eval/", "test/"))
        ],
        "params": {
            entry["paramName"]: entry["paramValue"] for entry in params if entry["source"] != "cli"
        },
        "kinds": {row["type"] for row in rows},
    }
