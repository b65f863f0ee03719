"""Files as DeepSpeed's processes write them, by our own description: it is not installed."""

import math
from pathlib import Path

import torch

SHAPES = [{"embedding": (5, 3), "layer.weight": (4, 4)}, {"layer.bias": (4,), "norm": (1,)}]
FROZEN, BUFFER = torch.arange(7.0).to(torch.bfloat16), torch.tensor([1, 2])


def number(name: str, entry: str) -> torch.Tensor:
    """The whole tensor of a parameter, or of its state: each element is another."""
    place = [name for group in SHAPES for name in group].index(name)
    shape = SHAPES[place // 2][name]
    first = 100 * place + 1000 * ["fp32", "exp_avg", "exp_avg_sq"].index(entry)
    return torch.arange(first, first + math.prod(shape), dtype=torch.float32).view(shape)


def flat_parts(group: dict, entry: str, stage: int, processes: int, gap: int) -> list[torch.Tensor]:
    """Return the part of a group that each process has, padded."""
    if stage == 3:
        wholes = [number(name, entry).flatten() for name in group]
        padded = [
            torch.cat([whole, torch.zeros(-len(whole) % processes)]).chunk(processes)
            for whole in wholes
        ]
        return [torch.cat([chunks[process] for chunks in padded]) for process in range(processes)]
    gaps = [gap] * (len(group) - 1) + [0]
    pieces = (
        (number(name, entry).flatten(), torch.zeros(g)) for name, g in zip(group, gaps, strict=True)
    )
    line = torch.cat([part for piece in pieces for part in piece])
    return list(torch.cat([line, torch.zeros(-len(line) % (2 * processes))]).chunk(processes))


def written(folder: Path, stage: int, processes: int, gap: int = 0, **changes) -> Path:
    """A checkpoint of `processes` processes; `changes` apply to the state of the first group in the
    last process.
    """
    states = folder / "global_step7"
    states.mkdir(parents=True)
    (folder / "latest").write_text("global_step7")
    model = {
        "param_shapes": SHAPES,
        "buffer_names": ["counts"],
        "shared_params": {"head": "embedding"},
    }
    model |= {"frozen_param_shapes": {"frozen": (7,)}, "global_steps": 7, "skipped_steps": 1}
    names = ["embedding", "frozen", "layer.weight", "layer.bias", "norm", "head"]
    for process in range(processes):
        empty = {name: torch.empty(0) for name in names}
        whole = {"frozen": FROZEN, "layer.weight": number("layer.weight", "fp32").bfloat16()}
        module = empty | ({} if stage == 3 else whole) | {"counts": BUFFER}
        padded = torch.cat([FROZEN, torch.zeros(-7 % processes, dtype=FROZEN.dtype)])
        mine = padded.chunk(processes)[process] if stage == 3 else FROZEN
        content = {**model, "module": module, "frozen_param_fragments": {"frozen": mine}}
        if stage == 3 or process == 0:
            name = f"zero_pp_rank_{process}_mp_rank_00" if stage == 3 else "mp_rank_00"
            torch.save(content, states / f"{name}_model_states.pt")
        optimizer = of_process(stage, processes, process, gap)
        if process == processes - 1:
            optimizer["optimizer_state_dict" if stage == 3 else "base_optimizer_state"]["state"][
                0
            ] |= changes
        path = states / f"zero_pp_rank_{process}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer}, path)
    return folder


def of_process(stage: int, processes: int, process: int, gap: int) -> dict:
    parts = lambda group, entry: flat_parts(group, entry, stage, processes, gap)[process]
    state = {
        place: (
            {entry: parts(group, entry) for entry in ("exp_avg", "exp_avg_sq")}
            | {"step": torch.tensor(7.0)}
        )
        for place, group in enumerate(SHAPES)
    }
    base = {
        "state": state,
        "param_groups": [{"params": [0], "lr": 0.1}, {"params": [1], "lr": 0.2}],
    }
    flats = [parts(group, "fp32") for group in SHAPES]
    if stage == 3:
        whole = {"zero_stage": 3, "partition_count": processes}
        return {**whole, "optimizer_state_dict": base, "fp32_flat_groups": flats}
    length = [sum(math.prod(shape) for shape in group.values()) + gap for group in SHAPES]
    used = [
        min(max(n - process * len(flat), 0), len(flat))
        for n, flat in zip(length, flats, strict=True)
    ]
    lean = {
        "single_partition_of_fp32_groups": [
            flat[:count].clone() for flat, count in zip(flats, used, strict=True)
        ]
    }
    lean |= {"group_paddings": [len(flat) - count for flat, count in zip(flats, used, strict=True)]}
    lean |= {"param_alignment_paddings": [[gap, 0], [gap, 0]]} if gap else {}
    return {
        **lean,
        "zero_stage": stage,
        "partition_count": [processes] * 2,
        "base_optimizer_state": base,
    }
