"""Loops over prepared models, loaders, optimizers and schedules: more calls that are made on
both accelerators.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from helpers.accelerator.accelerator_calls import CALLS, call


def read(a, loader):
    """Batches of a loop over a loader, and its position."""
    state, observations = a.gradient_state, []
    for batch in loader:
        observations.append(
            [batch, state.end_of_dataloader, state.in_dataloader, a.gather_for_metrics(batch)]
        )
    return [*observations, state.in_dataloader]


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "even": lambda: DataLoader(torch.arange(8.0), batch_size=2),
    "uneven": lambda: DataLoader(torch.arange(7.0), batch_size=2),
    "shorter than a round": lambda: DataLoader(torch.arange(3.0), batch_size=2),
    "of one": lambda: DataLoader(torch.arange(1.0), batch_size=2),
    "dropped": lambda: DataLoader(torch.arange(7.0), batch_size=2, drop_last=True),
    "of batches": lambda: DataLoader(
        torch.arange(7.0),
        batch_sampler=BatchSampler(SequentialSampler(range(7)), 2, drop_last=False),
    ),
    "of dicts": lambda: DataLoader(
        [{"a": float(i), "b": [float(i)]} for i in range(5)], batch_size=2
    ),
}
for name, make in LOADERS.items():
    CALLS[f"reading: {name}"] = lambda a, make=make: read(a, a.prepare(make()))
    CALLS[f"reading twice: {name}"] = lambda a, make=make: [
        read(a, loader) for loader in [a.prepare_data_loader(make())] for _ in range(2)
    ]
for skipped in (0, 1, 2):
    CALLS[f"reading after {skipped}"] = lambda a, skipped=skipped: list(
        a.skip_first_batches(a.prepare(LOADERS["uneven"]()), skipped)
    )
    CALLS[f"reading plainly after {skipped}"] = lambda a, skipped=skipped: [
        len(a.skip_first_batches(LOADERS["uneven"](), num_batches=skipped)),
        *a.skip_first_batches(LOADERS["uneven"](), skipped),
    ]


@call
def loaders_in_loaders(a):
    outer, inner = a.prepare(LOADERS["uneven"](), LOADERS["even"]())
    observations = []
    for batch in outer:
        observations.append(read(a, inner))
        observations.append(
            [batch, a.gradient_state.end_of_dataloader, a.gradient_state.in_dataloader]
        )
    return observations


@call
def preparing_nothing_special(a):
    thing = object()
    return [a.prepare(thing) is thing, len(a.prepare(thing, "text")), a.prepare("text")]


@call
def preparing_with_too_few_places(a):
    return a.prepare(1, 2, device_placement=[True])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 1)

    def forward(self, x):
        return self.second(self.norm(torch.tanh(self.first(x))))


def samples(count=13):
    torch.manual_seed(5)
    return [(torch.randn(4), torch.randn(1)) for _ in range(count)]


def train(
    a, *, optimizer=torch.optim.SGD, schedule=None, epochs=2, clip=None, value=None, count=13
):
    """A loop as scripts have it: its final state, and the observations on the way."""
    model = Net()
    opt = optimizer(model.parameters(), lr=0.1)
    parts = [model, opt, DataLoader(samples(count), batch_size=2)]
    parts += [] if schedule is None else [schedule(opt)]
    model, opt, loader, *schedulers = a.prepare(*parts)
    observations = []
    for _ in range(epochs):
        for x, y in loader:
            with a.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                a.backward(loss)
                if a.sync_gradients and clip is not None:
                    observations.append(a.clip_grad_norm_(model.parameters(), clip))
                if a.sync_gradients and value is not None:
                    a.clip_grad_value_(model.parameters(), value)
                opt.step()
                for scheduler in schedulers:
                    scheduler.step()
                opt.zero_grad()
            observations.append(
                [
                    a.sync_gradients,
                    loss,
                    a.optimizer_step_was_skipped,
                    *(scheduler.get_last_lr() for scheduler in schedulers),
                ]
            )
    inner = a.unwrap_model(model)
    return [
        observations,
        a.get_state_dict(model),
        list(inner.parameters()),
        opt.state_dict()["param_groups"],
        type(inner).__name__,
    ]


CALLS["an own loop"] = train
CALLS["an own loop with clipping"] = lambda a: train(a, clip=0.05)
CALLS["an own loop with cut off gradients"] = lambda a: train(a, value=0.01)
CALLS["an own loop with Adam"] = lambda a: train(a, optimizer=torch.optim.AdamW)
CALLS["an own loop with a schedule"] = lambda a: train(
    a, schedule=lambda opt: torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=6)
)
CALLS["an own loop with a schedule of a cycle"] = lambda a: train(
    a, schedule=lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=8)
)


@call
def an_own_loop_without_accumulate(a):
    model = Net()
    with a.no_sync(model):
        pass
    before = a.gradient_accumulation_steps
    a.gradient_accumulation_steps = 1
    model, opt = a.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = (torch.stack(part) for part in zip(*samples(4), strict=True))
    with a.no_sync(model):
        a.backward(nn.functional.mse_loss(model(x[:2] + a.process_index), y[:2]))
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    a.backward(nn.functional.mse_loss(model(x[2:] + a.process_index), y[2:]))
    opt.step()
    a.gradient_accumulation_steps = before
    return [alone, list(model.parameters())]


@call
def a_late_exchange(a):
    model = a.prepare(Net())
    x, y = (torch.stack(part) for part in zip(*samples(4), strict=True))
    before, a.gradient_accumulation_steps = a.gradient_accumulation_steps, 1
    with a.no_sync(model):
        losses = [
            nn.functional.mse_loss(model(x[i : i + 2] + a.process_index), y[i : i + 2])
            for i in (0, 2)
        ]
        a.backward(losses[0])
        with a.trigger_sync_in_backward(model):
            a.backward(losses[1])
    a.gradient_accumulation_steps = before
    return [parameter.grad for parameter in model.parameters()]


@call
def models_that_are_not_trained(a):
    model = Net().eval()
    ready = a.prepare_model(model, evaluation_mode=True)
    return [
        ready is model,
        ready.training,
        type(ready).__name__,
        a.prepare_model(ready, evaluation_mode=True) is ready,
    ]


@call
def unwrapping(a):
    compiled = torch.compile(Net(), backend="eager")
    models = [
        a.unwrap_model(a.prepare_model(Net())),
        a.unwrap_model(nn.DataParallel(Net())),
        a.unwrap_model(compiled),
    ]
    models += [
        a.unwrap_model(compiled, keep_torch_compile=False),
        a.unwrap_model(Net(), keep_fp32_wrapper=False),
    ]
    return [type(unwrapped).__name__ for unwrapped in models] + [
        a.unwrap_model(compiled) is compiled
    ]
