"""Pairs of processes, each pair with the variables of another launcher: forked, as everything is
imported here once.

    python launched_script.py OUTPUT_FOLDER

Every process of every pair writes what it saw to `OUTPUT_FOLDER/CASE-rank<rank>.json`; notebooks
write `notebook.json`.
"""

import json
import os
import random
import socket
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist

# before there is a group, see facade/distributed/process_group.py
import torch.distributed.nn.functional
import transformers

import lightrainer
import lightrainer.facade.trainer.lightning_trainer  # not again in each process
import lightrainer.facade.trainer.trainer_module
from helpers.processes.forking import forked, free_port
from helpers.processes.rank_training import QUIET, Classifier, points
from lightrainer.lightning_modules.internals import lightning_import

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
HOST = socket.gethostname()
UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "SLURM_NTASKS": 2,
    "SLURM_PROCID": "{rank}",
    "SLURM_JOB_NAME": "train",
    "SLURM_STEP_ID": 0,
}
NODE = {"SLURM_JOB_ID": "{job}", "SLURM_LOCALID": "{rank}", "SLURM_NODEID": 0}
NODES = {"SLURM_JOB_ID": "{job}", "SLURM_LOCALID": 0, "SLURM_NODEID": "{rank}", "SLURM_NNODES": 4}
THERE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "{port}"}
# which has more nodes than its step
OF_JOB = {"SLURM_TASKS_PER_NODE": "1(x4)", "SLURM_NODELIST": "node[17-20]"}
OF_STEP = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "localhost,node18"}
MPI = {"SIZE": 2, "RANK": "{rank}", "LOCAL_RANK": "{rank}", "LOCAL_SIZE": 2}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in MPI.items()}
INTEL_MPI = {
    "PMI_SIZE": 2,
    "PMI_RANK": "{rank}",
    "MPI_LOCALRANKID": "{rank}",
    "MPI_LOCALNRANKS": 2,
}
JSRUN = {f"JSM_NAMESPACE_{name}": value for name, value in MPI.items() if name != "LOCAL_SIZE"}
PAIR = {"RANK": "{rank}", "WORLD_SIZE": 2}
BESIDE = {"LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": 2}

CASES: dict[str, dict[str, Any]] = {
    "torchrun": {**THERE, **PAIR, **BESIDE},
    "srun": {**SLURM, **NODE, "SLURM_TASKS_PER_NODE": 2},
    "srun on two nodes": {**SLURM, **NODES, **OF_JOB, **OF_STEP},
    "Open MPI": {**OPEN_MPI, "PMIX_NAMESPACE": "job{job}"},
    # SLURM's are of the daemons
    "mpirun under SLURM": {**SLURM, **NODES, "SLURM_PROCID": 0, **OPEN_MPI, **THERE},
    "MVAPICH": {**{f"MV2_COMM_WORLD_{name}": value for name, value in MPI.items()}, **THERE},
    "Intel MPI": {**INTEL_MPI, "HYDRA_JOBID": "job{job}"},
    "jsrun": {**JSRUN, "LSB_JOBID": "{job}", "LSB_DJOB_RANKFILE": "{rankfile}"},
    "Kubeflow": {**THERE, **PAIR, "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    "Lightning": {**THERE, "WORLD_SIZE": 2, "LOCAL_RANK": "{rank}", "NODE_RANK": 0},
    "no local rank": {**THERE, **PAIR},
    "no local rank, one machine": {**THERE, **PAIR, "MASTER_ADDR": HOST},
    "no local rank, two machines": {**THERE, **PAIR, "MASTER_ADDR": HOST},
    "own group": {},
    "script of a SLURM job": {
        **SLURM,
        **NODE,
        "SLURM_STEP_ID": "",
        "SLURMD_NODENAME": "node17",
        "SLURM_PROCID": 0,
    },
    "salloc": {**SLURM, **NODE, "SLURM_JOB_NAME": "interactive", "SLURM_PROCID": 0},
}
REFERENCE = ("torchrun", "Open MPI", "MVAPICH", "Intel MPI")
ALONE = ("script of a SLURM job", "salloc")

for api in (lightrainer, transformers):
    api.Trainer, api.TrainingArguments  # noqa: B018 - imported when they are first accessed


class Seeing(lightning_import.Callback):
    """A callback of Lightning that notes how its Trainer stands."""

    def on_train_start(self, trainer, pl_module):
        self.place = [
            trainer.world_size,
            trainer.global_rank,
            trainer.local_rank,
            trainer.node_rank,
        ]
        self.strategy = type(trainer.strategy).__name__


def arguments(api: Any, folder: Path, **changes: Any) -> Any:
    options = {
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "learning_rate": 0.1,
        "save_strategy": "no",
    }
    return api.TrainingArguments(str(folder), **{**QUIET, **options, "ddp_timeout": 77, **changes})


def view(args: Any) -> dict[str, Any]:
    names = ("world_size", "process_index", "local_process_index", "should_log", "should_save")
    return {name: getattr(args, name) for name in names} | {"mode": args.parallel_mode.value}


def trained(folder: Path, name: str) -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    args = arguments(lightrainer, folder / name)
    joined = dist.is_initialized()
    seeing = Seeing()
    torch.manual_seed(3)
    trainer = lightrainer.Trainer(Classifier(), args, train_dataset=points(16), callbacks=[seeing])
    output = trainer.train()
    predicted = trainer.predict(points(16)).predictions
    return {
        "joined": joined,
        "view": view(args),
        "local_world_size": args.distributed_state.local_world_size,
        "plan": [trainer.plan.devices, trainer.plan.num_nodes],
        "lightning": {"place": seeing.place, "strategy": seeing.strategy},
        "variables": [os.environ.get(variable) for variable in UNSET],
        "state": accelerate.PartialState(cpu=True).process_index,
        "timeout": seconds() if joined else None,
        "steps": output.global_step,
        "weights": trainer.model.second.weight.flatten().tolist(),
        "predicted": len(predicted),
    }


def seconds() -> float:
    return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def refusals(folder: Path) -> dict[str, str]:
    """Return the errors in a fork, and in a program, that inherit the place of a process that
    has joined.
    """

    def again() -> None:
        try:
            arguments(lightrainer, folder / "again")
        except RuntimeError as error:
            (folder / f"fork-{os.environ['RANK']}.txt").write_text(str(error))

    pid = os.fork()
    if not pid:
        again()
        os._exit(0)
    os.waitpid(pid, 0)
    code = (
        f"from lightrainer import TrainingArguments; TrainingArguments({str(folder)!r}, "
        "use_cpu=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    fork = (folder / f"fork-{os.environ['RANK']}.txt").read_text()
    return {"fork": fork, "program": done.stderr.strip().splitlines()[-1]}


def one(name: str, folder: Path, values: dict[str, Any], reference: bool = False) -> None:
    """Run one process of a pair."""
    rank = int(os.environ["RANK"])
    for variable in UNSET:
        del os.environ[variable]
    os.environ.update(
        {key: str(value).format(rank=rank, **values) for key, value in CASES[name].items()}
    )
    for variable in [key for key, value in os.environ.items() if key in CASES[name] and not value]:
        del os.environ[variable]
    place = folder / f"{name}{', reference' if reference else ''}-rank{rank}.json"
    if reference:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(values["port"])}
        place.write_text(json.dumps(view(arguments(transformers, folder))))
        return
    if name == "no local rank, two machines":
        socket.gethostname = lambda: f"machine {rank}"
    if name == "own group":
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
        )
    record = trained(folder, name)
    if name == "torchrun":
        record["refused"] = refusals(folder)
    place.write_text(json.dumps(record))


def in_notebook(folder: Path, *given: Any) -> dict[str, Any]:
    return {"given": list(given), **trained(folder, "notebook")}


def notebooks(folder: Path) -> dict[str, Any]:
    """From a notebook that has computed already, which is what the prompt stands for."""
    sys.ps1 = "In [1]: "
    torch.set_num_threads(2)
    (torch.randn(500, 500) @ torch.randn(500, 500)).sum()
    record: dict[str, Any] = {
        "ours": lightrainer.notebook_launcher(partial(in_notebook, folder), (1, "two"), 2)
    }

    def written(folder: Path) -> None:
        local_record = trained(folder, "notebook of accelerate")
        (folder / f"notebook-{os.environ['RANK']}.json").write_text(json.dumps(local_record))

    accelerate.notebook_launcher(written, (folder,), num_processes=2, use_port=str(free_port()))
    record["theirs"] = [
        json.loads((folder / f"notebook-{rank}.json").read_text()) for rank in (0, 1)
    ]
    return record


def free_job() -> int:
    """A number of a job whose port is free: Lightning counts from 15000 for SLURM, from 10000
    for LSF.
    """
    while True:
        job = random.randrange(1000, 10000)
        with socket.socket() as slurm, socket.socket() as lsf:
            try:
                slurm.bind(("", 15000 + job))
                lsf.bind(("", 10000 + job % 1000))
            except OSError:
                continue
            return job


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rankfile = folder / "rankfile"
    rankfile.write_text(f"launch\nlocalhost\n{HOST}\n")
    for name in CASES:
        for reference in (False, True) if name in REFERENCE else (False,):
            values = {"port": free_port(), "job": free_job(), "rankfile": rankfile}
            action = partial(one, name, folder, values, reference)
            ended = forked(action, 2, log=folder / "log.txt")
            if any(ended.codes):
                sys.exit(f"{name}: {ended.codes}\n{ended.said[-5000:]}")
    (folder / "said.txt").write_text((folder / "log.txt").read_text())
    (folder / "notebook.json").write_text(json.dumps(notebooks(folder)))


if __name__ == "__main__":
    main(FOLDER)
