"""Optimizers of torch step without the compiler as long as it is not loaded, and as ever from
then on.
"""

import subprocess
import sys

import pytest
import torch
import torch._dynamo

from lightrainer.lightning_modules.internals import compiler

TRAIN = """
import sys, tempfile, torch
from lightrainer import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.linear(x), labels), None

class OwnOptimizer(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = self.optimizer or torch.optim.AdamW(self.model.parameters())
        return self.optimizer

data = [{"x": torch.zeros(2), "labels": 0}]
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, max_steps=2, use_cpu=True, save_steps=1, report_to="none", disable_tqdm=True)
    Trainer(Model(), args, train_dataset=data).train()
    Trainer(Model(), args, train_dataset=data).train(resume_from_checkpoint=folder + "/checkpoint-1")
    OwnOptimizer(Model(), args, train_dataset=data).train()
unused = ("transformers", "matplotlib")
loaded = [name for name in sys.modules if name.split(".")[0] in unused or name == "torch._dynamo"]

import matplotlib, torchmetrics
matplotlib.use("agg")
metric = torchmetrics.MeanMetric()
metric.update(1.0)
plotted = isinstance(metric.plot()[0], matplotlib.figure.Figure)

from lightning.fabric.wrappers import OptimizedModule
model = torch.nn.Linear(1, 1)
not_compiled = isinstance(model, OptimizedModule)
compiled = isinstance(torch.compile(model, backend="eager"), OptimizedModule)
sys.exit(f"{loaded} {plotted} {not_compiled} {compiled}")
"""


def test_compiler_modules_load_when_used():
    """In a separate process: in this one, and in its children, the compiler is loaded."""
    tensor_parallel = "import sys, torch.distributed.tensor.parallel; sys.exit('%s' in sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", tensor_parallel % compiler.DYNAMO]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this torch imports the compiler with tensor parallelism")
    command = [sys.executable, "-W", "ignore", "-c", TRAIN]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "[] True False True", ended.stderr


@pytest.fixture
def unloaded(monkeypatch):
    """Name of a missing module: the compiler counts as not loaded."""
    name = "torch._dynamo_that_is_not_loaded"
    monkeypatch.setattr(compiler, "DYNAMO", name)
    return name


@pytest.fixture
def breaks(monkeypatch):
    """Calls of the compiler by torch's optimizers: two graph breaks for each step."""
    calls = []
    monkeypatch.setattr(torch._dynamo, "graph_break", lambda: calls.append(1))
    return calls


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def trained(optimizer_class, plainly):
    """The weights after three steps, with a hook, a schedule, and gradients set to zero; what
    the hook saw.
    """
    trained_model, observed = model(), []
    optimizer = optimizer_class(trained_model.parameters(), lr=0.1)
    if plainly:
        compiler.step_without_compiler(optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = optimizer.param_groups[0]
    optimizer.register_step_post_hook(
        lambda *_: observed.append((torch.is_grad_enabled(), rates["lr"]))
    )
    for _ in range(3):
        trained_model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return trained_model.weight.detach().tolist(), observed


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Adadelta"])
def test_plain_steps_give_the_same_weights(name, unloaded, breaks):
    optimizer_class = getattr(torch.optim, name)
    plain = trained(optimizer_class, plainly=True)
    assert not breaks
    # with torch's own the compiler would be loaded
    assert compiler._disable_dynamo is torch._compile._disable_dynamo
    assert plain == trained(optimizer_class, plainly=False)
    assert len(breaks) == 6


def test_compiler_restores_gradient_mode_around_a_step(unloaded, breaks):
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    compiler.step_without_compiler(optimizer)
    optimizer.step(lambda: parameter.sum().backward())
    assert (parameter.tolist(), torch.is_grad_enabled(), breaks) == ([0.0, 0.0], True, [])


def test_compiler_leaves_other_optimizers_alone(unloaded):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return closure

    differentiable = torch.optim.SGD(model().parameters(), lr=0.1, differentiable=True)
    for optimizer in (
        Own(model().parameters(), lr=0.1),
        torch.optim.LBFGS(model().parameters()),
        differentiable,
    ):
        compiler.step_without_compiler(optimizer)
        assert "step" not in vars(optimizer)


def test_compiler_skips_a_function_once_loaded(unloaded, monkeypatch):
    @compiler.disable_dynamo
    def compiling():
        return torch.compiler.is_compiling()

    assert compiling.__wrapped__.__dynamo_disable is not None
    assert compiling() is False
    monkeypatch.setitem(sys.modules, unloaded, torch._dynamo)
    compiled = torch.compile(lambda: (torch.compiler.is_compiling(), compiling()), backend="eager")
    assert compiled() == (True, False)
