"""Scenarios of machines that train together; torch's own agents start the processes, as `torchrun`
does on each.

    node_scenarios_script.py FOLDER isolated|loopback SCENARIO ...

Everything is imported once, and forked. Prints a JSON object: for each scenario what its function
returns.
"""

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn.functional

import lightrainer.facade.trainer.lightning_trainer  # noqa: F401 - imported once, for all
from helpers import HELPERS, TESTS
from helpers.nodes.machines import Machines
from helpers.processes.forking_server import launch

TRAINING = HELPERS / "nodes" / "node_training_script.py"
SHARDED = HELPERS / "ddp" / "shard_script.py"
AT_A_TIME = 4  # most of the time they wait for each other
STRATEGIES = ["ddp", "fsdp2_hybrid", "fsdp2_parts"]
# A machine without a sign of life counts as gone after three seconds, not fifteen.
QUICK = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"


def start(
    machines: Machines,
    number: int,
    script: Path,
    *words: str,
    options: tuple[str, ...] = (),
    **more: str,
) -> None:
    """The agent of one machine, as `torchrun` makes it."""
    machine, count = machines.all[number], len(machines.all)
    settings = {
        "--nnodes": count,
        "--nproc-per-node": 1,
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": machines.endpoint,
    }
    settings |= {"--rdzv-id": "job", "--local-addr": machine.address}
    settings |= dict(option.split("=", 1) for option in options)
    # Each machine takes a loopback address for its own, and the first to come would keep the store,
    # and take it along.
    keeps = str(settings["--rdzv-endpoint"]).rpartition(":")[0] == machine.name
    settings["--rdzv-conf"] = f"{QUICK},is_host={int(keeps)}"
    environment = {
        "PYTHONPATH": str(TESTS),
        "NODE": str(number),
        "NODE_DISK": str(machines.disk_of(number)),
    }
    command = [f"{name}={value}" for name, value in settings.items()]
    machines.start(
        number, partial(launch, command, str(script), list(words), {**environment, **more})
    )


def together(machines: Machines, script: Path, *words: str, **options: Any) -> list[int]:
    for number in range(len(machines.all)):
        start(machines, number, script, *words, **options)
    return machines.wait()


def train(machines: Machines, *words: str, **options: Any) -> list[int]:
    return together(machines, TRAINING, *words, **options)


def well(machines: Machines, codes: list[int]) -> None:
    if any(codes):
        raise RuntimeError(f"{codes}\n{machines.said()}")


def read(folder: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in range(ranks)]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- trainings to which nothing happens


def strategies(folder: Path, isolated: bool) -> dict[str, Any]:
    """Two machines with two processes each, and a folder that both see; beside it one process
    alone.
    """
    machines = Machines(folder / "nodes", 2, isolated)
    well(
        machines,
        together(machines, SHARDED, str(folder), *STRATEGIES, options=("--nproc-per-node=2",)),
    )
    alone = Machines(folder / "alone", 1, isolated)
    well(alone, together(alone, SHARDED, str(folder), "single"))
    return {
        "single": read(folder, "single", 1)[0],
        **{strategy: read(folder, strategy, 4) for strategy in STRATEGIES},
        "output": [machine.said() for machine in machines.all],
    }


def disks(
    folder: Path, isolated: bool, each: bool, library: str = "lightrainer", nodes: int = 2
) -> dict[str, Any]:
    """Machines with two processes each, and checkpoints on the disk of each machine, or of the
    first one.
    """
    machines, name = Machines(folder / "nodes", nodes, isolated), "disks"
    options = json.dumps({"save_on_each_node": each, "log_on_each_node": each})
    two = ("--nproc-per-node=2",) if nodes == 2 else ()
    well(
        machines,
        train(machines, "places", str(folder), name, options, options=two, LIBRARY=library),
    )
    result = {
        "ranks": read(folder, name, 4 if two else nodes),
        "files": [files(machine.disk) for machine in machines.all],
    }
    if library == "lightrainer" and nodes == 2:
        result["resumed"] = resumed(machines, folder, options, each)
    result["output"] = [machine.said() for machine in machines.all]
    return result


def resumed(machines: Machines, folder: Path, options: str, each: bool) -> dict[str, Any]:
    """The same again from the last checkpoint but one: on both machines, and on the second
    one alone.
    """
    results = {}
    for name, numbers in {"both": (0, 1), "1": (1,)}.items():
        if name == "1" and not each:
            continue
        for machine in machines.all:
            shutil.rmtree(machine.disk / "out" / "checkpoint-6", ignore_errors=True)
        place = f"--rdzv-endpoint={machines.all[numbers[0]].name}:{machines.port}"
        alone = () if len(numbers) == 2 else ("--nnodes=1", place)
        for number in numbers:
            words = ("places", str(folder), f"from {name}", options, "resume")
            start(
                machines,
                number,
                TRAINING,
                *words,
                options=("--nproc-per-node=2", *alone),
            )
        codes = machines.wait(*numbers)
        results[name] = {
            "codes": codes,
            "ranks": read(folder, f"from {name}", 0 if any(codes) else 2 * len(numbers)),
        }
    return results


def parts(folder: Path, isolated: bool) -> dict[str, Any]:
    """Checkpoints in parts, on disks of which no process sees all."""
    machines = Machines(folder / "nodes", 2, isolated)
    sharded = {
        "fsdp": "full_shard",
        "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
    }
    codes = train(machines, "places", str(folder), "parts", json.dumps(sharded))
    return {
        "codes": codes,
        "output": [machine.said() for machine in machines.all],
        "files": [files(machine.disk) for machine in machines.all],
    }


# --- trainings in which something happens to a machine

WHOLE = "whole"
RESTARTING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def lost(folder: Path, isolated: bool, how: str, seconds: int = 60) -> dict[str, Any]:
    """The second of two machines is lost after three steps; how the first one ends, and what is
    left of the second.
    """
    machines, name = Machines(folder / "nodes", 2, isolated), "lost"
    for number in (0, 1):
        start(
            machines,
            number,
            TRAINING,
            "interrupted",
            str(folder),
            name,
            "lost",
            str(seconds),
        )
    machines.until(folder / f"{name}-hit")
    begun = time.monotonic()
    {"killed": machines.kill, "cut": machines.cut_off}[how](1)
    codes = machines.wait(0, seconds=40)
    passed = time.monotonic() - begun
    if how == "cut":
        machines.kill(1)
    return {
        "codes": [*codes, *machines.wait(1)],
        "passed": passed,
        "output": [machine.said() for machine in machines.all],
    }


def orphaned(folder: Path, isolated: bool) -> dict[str, Any]:
    """The launcher of the second machine is killed after three steps, and nothing that it
    started.
    """
    machines, name = Machines(folder / "nodes", 2, isolated), "orphaned"
    for number in (0, 1):
        start(machines, number, TRAINING, "interrupted", str(folder), name, name)
    machines.until(folder / f"{name}-hit")
    machines.kill_program(1)
    (folder / f"{name}-back").touch()

    # The first launcher would wait for the second one.
    for rank in (0, 1):
        machines.until(folder / f"{name}-rank{rank}.json")
    machines.kill(0, 1)
    machines.wait()
    return {"ranks": read(folder, name, 2)}


def back(folder: Path, isolated: bool, action: str) -> dict[str, Any]:
    """The second machine is switched off, and on again: the others wait for it, or continue without
    it until it comes back.
    """
    whole = Machines(folder / "whole", 2, isolated)
    training, name = TRAINING, "back"
    (folder / f"{WHOLE}-hit").touch()
    well(whole, together(whole, training, "interrupted", str(folder), WHOLE, "none"))
    machines = Machines(folder / "nodes", 2, isolated)
    options = ("--max-restarts=3", *(("--nnodes=1:2",) if action == "alone" else ()))
    for number in (0, 1):
        start(
            machines,
            number,
            training,
            "interrupted",
            str(folder),
            name,
            action,
            options=options,
            **RESTARTING,
        )
    machines.until(folder / f"{name}-hit")
    machines.kill(1)
    machines.wait(1)
    if action == "alone":
        machines.until(folder / f"{name}-back")
    start(
        machines,
        1,
        training,
        "interrupted",
        str(folder),
        name,
        action,
        options=options,
        **RESTARTING,
    )
    well(machines, machines.wait())
    began = [(folder / f"{name}-began{node}.txt").read_text().splitlines() for node in (0, 1)]
    outputs = [machine.said() for machine in machines.all]
    return {
        "whole": read(folder, WHOLE, 2),
        "ranks": read(folder, name, 2),
        "began": began,
        "output": outputs,
    }


SCENARIOS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "strategies": strategies,
    "each": partial(disks, each=True),
    "first": partial(disks, each=False),
    "each, reference": partial(disks, each=True, library="transformers"),
    "first, reference": partial(disks, each=False, library="transformers"),
    "killed": partial(lost, how="killed"),
    "agent": orphaned,
    "cut": partial(lost, how="cut", seconds=5),
    "back": partial(back, action="wait"),
    "elastic": partial(back, action="alone"),
    "parts": parts,
    "three": partial(disks, each=False, nodes=3),
}


def begin(name: str, folder: Path, isolated: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        folder.mkdir()
        begun = time.monotonic()
        result = SCENARIOS[name](folder, isolated)
        (folder / "report.json").write_text(
            json.dumps({**result, "seconds": time.monotonic() - begun})
        )
        code = 0
    except BaseException:
        (folder / "failed.txt").write_text(traceback.format_exc())
    os._exit(code)


def main() -> None:
    torch.set_num_threads(1)
    folder, way, *names = sys.argv[1:]
    running: dict[int, str] = {}
    left, report = list(names), {}
    while left or running:
        while left and len(running) < AT_A_TIME:
            name = left.pop(0)
            running[begin(name, Path(folder) / name, way == "isolated")] = name
        pid, status = os.wait()
        name = running.pop(pid)
        place = Path(folder) / name
        report[name] = (
            {"failed": (place / "failed.txt").read_text()}
            if status
            else json.loads((place / "report.json").read_text())
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
