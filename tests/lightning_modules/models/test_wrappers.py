"""The model inside its wrappers and adapters."""

import sys
import types

import torch
from torch import nn

from helpers.lightning.tiny_modules import Net
from lightrainer.lightning_modules.models.wrappers import base_of_adapter, class_of, unwrap_model


def test_unwrap_model_removes_all_wrappers():
    model = Net()
    wrapped = [
        model,
        nn.DataParallel(model),
        torch.compile(model, backend="eager"),
        torch.compile(nn.DataParallel(model), backend="eager"),
        nn.DataParallel(torch.compile(model, backend="eager")),
    ]
    assert all(unwrap_model(each) is model for each in wrapped)


def test_unwrap_model_keeps_a_user_model_with_a_module_attribute():
    holder = nn.ModuleDict({"module": Net()})
    assert unwrap_model(holder) is holder


def test_base_of_adapter_is_the_model_under_it(monkeypatch):
    base = Net()
    peft = types.ModuleType("peft")
    peft.PeftModel = type("PeftModel", (), {"get_base_model": lambda self: base})
    peft.PeftMixedModel = type(
        "PeftMixedModel", (), {"base_model": types.SimpleNamespace(model=base)}
    )
    assert base_of_adapter(base) is base
    monkeypatch.setitem(sys.modules, "peft", peft)
    assert base_of_adapter(peft.PeftModel()) is base
    assert base_of_adapter(peft.PeftMixedModel()) is base
    assert base_of_adapter(base) is base


def test_class_of_a_model_renamed_by_fully_shard():
    """A class of the user whose name begins with FSDP is returned as it is."""
    from torch.distributed.fsdp import FSDPModule

    class TinyForCausalLM(nn.Module):
        pass

    class FSDPLike(TinyForCausalLM):
        pass

    model = TinyForCausalLM()
    assert class_of(model) is TinyForCausalLM
    model.__class__ = type("FSDPTinyForCausalLM", (FSDPModule, TinyForCausalLM), {})
    assert class_of(model) is TinyForCausalLM
    assert class_of(FSDPLike()) is FSDPLike
