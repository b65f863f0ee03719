"""Stand-ins for the libraries with optimizers: they are found when imported, and record what
they are given.
"""

import importlib.metadata
import sys
from types import ModuleType

import torch
from torch import nn

MODULES = {
    "torch_xla.amp.syncfree": ["AdamW"],
    "torch_npu.optim": ["NpuFusedAdamW"],
    "apex.optimizers": ["FusedAdam"],
    "torchdistx.optimizers": ["AnyPrecisionAdamW"],
    "torchao.optim": ["AdamW4bit", "AdamW8bit"],
    "schedulefree": ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"],
    "grokadamw": ["GrokAdamW"],
    "optimi": ["StableAdamW"],
    "lomo_optim": ["Lomo", "AdaLomo"],
    "bitsandbytes.optim": ["AdamW", "Lion", "RMSprop", "AdEMAMix"],
    "galore_torch": ["GaLoreAdamW", "GaLoreAdamW8bit", "GaLoreAdafactor"],
    "apollo_torch": ["APOLLOAdamW"],
}

_CHECKS = "galore_torch apollo_torch lomo grokadamw torchao schedulefree torch_optimi bitsandbytes"


class Recorded(torch.optim.SGD):
    """Trains like SGD and keeps its constructor arguments."""

    def __init__(self, params, **kwargs):
        self.given = (params, kwargs)
        super().__init__(
            params.parameters() if isinstance(params, nn.Module) else params, lr=kwargs["lr"]
        )


class Overrides:
    """The manager of bitsandbytes: which parameters have other settings."""

    asked: list = []

    @classmethod
    def get_instance(cls):
        return cls

    @classmethod
    def register_module_override(cls, module, name, config):
        cls.asked.append((module, name, config))


def install(monkeypatch, *libraries):
    """Put stand-ins for the libraries in place, by default for all, and make the reference
    believe in them.
    """
    for path, names in MODULES.items():
        if libraries and path.partition(".")[0] not in libraries:
            continue
        members = {name: type(name, (Recorded,), {"__module__": path}) for name in names}
        for depth in range(1, path.count(".") + 2):
            part = ".".join(path.split(".")[:depth])
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
        vars(sys.modules[path]).update(members)
        if "." in path:
            parent, _, child = path.rpartition(".")
            setattr(sys.modules[parent], child, sys.modules[path])
    if not libraries or "bitsandbytes" in libraries:
        Overrides.asked = []
        sys.modules["bitsandbytes.optim"].GlobalOptimManager = Overrides
    for name in _CHECKS.split():
        monkeypatch.setattr(f"transformers.trainer_optimizer.is_{name}_available", lambda *_: True)
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.18" if name == "torchao" else version(name)
    )


def hide(monkeypatch):
    """Make the libraries impossible to import, also where they are installed."""
    for path in MODULES:
        monkeypatch.setitem(sys.modules, path.partition(".")[0], None)
        monkeypatch.setitem(sys.modules, path, None)
