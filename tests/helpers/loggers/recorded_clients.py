"""Clients of trackers that cannot run here, replaced by modules that write down how they are
called.
"""

import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Recorder:
    """Answers every call, writes it down, and is its own result: `a.b(1).c()` becomes
    `("a.b", ...), ("a.b.c", ...)`.

    `answers` are results by name; a function is called for one, every time.
    """

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    name: str = ""
    answers: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith("__internal_api__"):
            raise AttributeError(name)
        return Recorder(self.calls, f"{self.name}.{name}".lstrip("."), self.answers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((self.name, args, kwargs))
        if self.name not in self.answers:
            return self
        answer = self.answers[self.name]
        return (
            answer(*args, **kwargs)
            if callable(answer) and not isinstance(answer, Recorder)
            else answer
        )


def install(monkeypatch: Any, modules: dict[str, dict[str, Any]]) -> None:
    """Put modules with these contents, and the packages around them, in the place of what may be
    installed.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] in {module.partition(".")[0] for module in modules}:
            monkeypatch.delitem(sys.modules, name)
    packages = {
        ".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 2)
    }
    for name in sorted(packages):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, loader=None, origin="a stand-in")
        module.__path__ = []
        module.__dict__.update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
        above, _, last = name.rpartition(".")
        if above and not hasattr(sys.modules[above], last):
            setattr(sys.modules[above], last, module)


def azureml(monkeypatch: Any) -> Recorder:
    record = Recorder()
    install(monkeypatch, {"azureml.core.run": {"Run": record.Run}})
    return record


def clearml(monkeypatch: Any, current_task: Any = None) -> Recorder:
    """`current_task` is a task of the script."""
    record = Recorder()
    tasks: list[Any] = []

    def init(**kwargs: Any) -> Any:
        tasks.append(Task(record, f"task-{len(tasks)}"))
        return tasks[-1]

    record.answers |= {
        "Task.current_task": lambda: next(
            (task for task in reversed(tasks) if task.is_open), current_task
        ),
        "Task.running_locally": True,
        "Task.init": init,
        "utilities.proxy_object.flatten_dictionary": dict,
    }
    install(
        monkeypatch,
        {
            "clearml": {"Task": record.Task, "OutputModel": record.OutputModel},
            "clearml.model": {"Model": record.model.Model},
            "clearml.utilities.proxy_object": {"flatten_dictionary": dict},
        },
    )
    return record


class Task:
    """One of ClearML: as a recorder, but it can be closed, and nothing may be written to it
    then.
    """

    def __init__(self, record: Recorder, name: str) -> None:
        self.id, self.is_open, self._record = name, True, record

    def close(self) -> None:
        self._record.task.close()
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        assert self.is_open, f"{name} of a closed task"
        return getattr(self._record.task, name)


def comet_ml(monkeypatch: Any) -> Recorder:
    record = Recorder()
    record.answers |= {
        "ExperimentConfig": lambda **kwargs: ("named", kwargs["name"]),
        "start": record.experiment,
    }
    record.answers["experiment.get_key"] = "the-key"
    install(
        monkeypatch,
        {"comet_ml": {"start": record.start, "ExperimentConfig": record.ExperimentConfig}},
    )
    return record


def mlflow(monkeypatch: Any, active: bool = False) -> Recorder:
    record = Recorder()
    running: list[Any] = [1] if active else []
    run = SimpleNamespace(info=SimpleNamespace(run_id="the-run"), data=SimpleNamespace(params={}))
    record.answers |= {
        "active_run": lambda: run if running else None,
        "is_tracking_uri_set": False,
        "start_run": lambda **kwargs: running.append(run),
        "end_run": lambda *args: running.pop(),
    }
    names = (
        "active_run is_tracking_uri_set get_tracking_uri set_tracking_uri set_experiment start_run "
        "end_run set_tags"
    )
    names += " log_params log_metrics log_artifacts flush_async_logging"
    contents = {name: getattr(record, name) for name in names.split()}
    limits = {"MAX_PARAM_VAL_LENGTH": 6000, "MAX_PARAMS_TAGS_PER_BATCH": 100}
    install(
        monkeypatch,
        {"mlflow": {"__version__": "3.0.0", **contents}, "mlflow.utils.validation": limits},
    )
    return record


def dagshub(monkeypatch: Any) -> Recorder:
    """With MLflow."""
    record = mlflow(monkeypatch)
    install(monkeypatch, {"dagshub.upload": {"Repo": record.Repo}})
    return record


def flytekit(monkeypatch: Any) -> Recorder:
    record = Recorder()
    record.answers["current_context"] = SimpleNamespace(checkpoint=record.checkpoint)
    record.answers["TableRenderer"] = SimpleNamespace(
        to_html=lambda frame: frame.to_dict("records")
    )
    install(
        monkeypatch,
        {
            "flytekit": {"current_context": record.current_context, "Deck": record.Deck},
            "flytekitplugins.deck.renderer": {"TableRenderer": record.TableRenderer},
        },
    )
    return record


def swanlab(monkeypatch: Any) -> Recorder:
    """An older version, as the reference knows it."""
    record = Recorder()
    runs: list[Any] = []
    record.answers |= {
        "get_run": lambda: runs[-1] if runs else None,
        "init": lambda **kwargs: runs.append("a run"),
        "finish": lambda: runs.pop(),
    }
    config = Config(record)
    contents = {name: getattr(record, name) for name in ("init", "log", "get_run", "finish")}
    install(monkeypatch, {"swanlab": {"config": config, **contents}})
    return record


class Config(dict[str, Any]):
    """The configuration of a run: what is set is written down, too."""

    def __init__(self, record: Recorder) -> None:
        super().__init__()
        self._record = record

    def update(self, values: dict[str, Any], **kwargs: Any) -> None:
        super().update(values)
        self._record.config(values)


def trackio(monkeypatch: Any, space: str | None = "me/trackio") -> Recorder:
    record = Recorder()
    record.answers |= {"init": lambda **kwargs: SimpleNamespace(name=kwargs["name"] or "made-up")}
    record.answers |= {"freeze": lambda **kwargs: f"me/{kwargs['new_space_id']}"}
    record.answers |= {"sync": lambda **kwargs: f"me/{kwargs['space_id']}"}
    context = SimpleNamespace(
        current_space_id=SimpleNamespace(get=lambda: space),
        current_project=SimpleNamespace(get=lambda: "project"),
    )
    contents: dict[str, Any] = {
        name: getattr(record, name) for name in ("init", "log", "finish", "freeze", "sync")
    }
    contents |= {"config": Config(record), "context_vars": context, "__version__": "0.43.0"}
    install(monkeypatch, {"trackio": contents})
    return record
