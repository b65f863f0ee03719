"""Trainers that never call `Trainer.__init__`, but their own loops call its methods: logs,
checkpoints, optimizers.
"""

import json

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from helpers.comparing.bit_differences import differences, without_clock
from helpers.devices.pretended_cuda import trains_on_device
from helpers.parity.harness import DEFAULTS
from helpers.parity.parity_datasets import points
from helpers.parity.parity_models import Classifier
from lightrainer.lightning_modules.checkpoints import load_torch


class PolicyAndValue(nn.Module):
    """The optimized module, of which only the policy is saved."""

    def __init__(self, policy, value):
        super().__init__()
        self.policy, self.value = policy, value

    def forward(self, x):
        return self.policy(x)["logits"], self.value(x)


def names_of(api):
    """Return the module with the names of callbacks."""
    return api.trainer_callback if api.__name__ == "transformers" else api


def own_loop(api):
    """As those of reinforcement learning: everything that a Trainer has is set by hand, and so
    is every step taken.
    """

    class OwnLoop(api.Trainer):
        # which transformers 5.20 sets in its own `__init__`
        is_distributed_loading_by_transformers = False

        def __init__(
            self, args, policy, value, train_dataset, callbacks=None, optimizers=(None, None)
        ):
            self.args, self.processing_class = args, None
            self.train_dataset, self.eval_dataset, self.data_collator = train_dataset, None, None
            self.optimizer, self.lr_scheduler = optimizers
            self.optimizer_cls_and_kwargs = None
            self.accelerator = Accelerator(cpu=not trains_on_device())
            self.model = PolicyAndValue(policy, value)
            self.create_optimizer_and_scheduler(num_training_steps=4)
            all_callbacks = [names_of(api).DefaultFlowCallback, *(callbacks or [])]
            handler = names_of(api).CallbackHandler
            self.callback_handler = handler(
                all_callbacks, self.model, None, self.optimizer, self.lr_scheduler
            )
            self.add_callback(api.PrinterCallback)
            self.control = api.TrainerControl()
            candidates = *self.callback_handler.callbacks, self.control
            exported = [
                candidate for candidate in candidates if isinstance(candidate, self.exportable)
            ]
            self.state = api.TrainerState(
                is_local_process_zero=self.is_local_process_zero(),
                is_world_process_zero=self.is_world_process_zero(),
                stateful_callbacks=exported,
            )
            self.current_flos, self.hp_search_backend = 0, None
            self.is_deepspeed_enabled = self.is_fsdp_enabled = False
            self.hub_model_id = None
            self.dataloader = DataLoader(train_dataset, batch_size=4, drop_last=True)
            prepared = self.accelerator.prepare(self.model, self.optimizer, self.dataloader)
            self.model, self.optimizer, self.dataloader = prepared

        exportable = names_of(api).ExportableState

        def get_train_dataloader(self):
            return self.dataloader

        def save_model(self, output_dir=None, _internal_call=False):
            whole, self.model = self.model, self.model.policy
            super().save_model(output_dir, _internal_call)
            self.model = whole

        def train(self):
            handler, args = self.callback_handler, self.args
            self.state.max_steps, self.state.num_train_epochs = 4, 1
            self.state.compute_steps(args, 4)
            self.control = handler.on_train_begin(args, self.state, self.control)
            for batch in self.get_train_dataloader():
                logits, value = self.model(batch["x"])
                loss = nn.functional.cross_entropy(logits, batch["labels"]) + value.square().mean()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.state.global_step += 1
                self.state.epoch = self.state.global_step / 4
                self.log({"objective": loss.item()})
                self.lr_scheduler.step()
                self.control = handler.on_step_end(args, self.state, self.control)
                if self.control.should_save:
                    self._save_checkpoint(self.model, trial=None)
                    self.control = handler.on_save(args, self.state, self.control)
            self.control = handler.on_train_end(args, self.state, self.control)

    return OwnLoop


def trained(api, folder, **arguments):
    class Counting(api.TrainerCallback, names_of(api).ExportableState):
        """Its state is part of checkpoints."""

        saved = 0

        def on_save(self, *_, **__):
            self.saved += 1

        def state(self):
            return {"args": {}, "attributes": {"saved": self.saved}}

    torch.manual_seed(3)
    args = api.TrainingArguments(
        str(folder), **{**DEFAULTS, "save_strategy": "steps", "save_steps": 2, **arguments}
    )
    trainer = own_loop(api)(args, Classifier(), nn.Linear(8, 1), points(16), callbacks=[Counting()])
    trainer.train()
    trainer.save_model()
    return trainer


def left_in(folder):
    """Return the files of a checkpoint that resumptions need."""
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"] = [without_clock(entry) for entry in state["log_history"]]
    state["total_flos"] = float(state["total_flos"])
    states = {
        path.name: load_torch(str(path))
        for path in (folder / "optimizer.pt", folder / "scheduler.pt")
    }
    return {"state": state, "weights": load_file(folder / "model.safetensors"), **states}


def test_custom_loop_logs_saves_and_creates_its_optimizer(reference, ours, tmp_path):
    expected, actual = trained(reference, tmp_path / "reference"), trained(ours, tmp_path / "ours")
    assert actual.state.log_history == expected.state.log_history
    assert [len(entry) for entry in expected.state.log_history] == [3] * 4
    folders = [tmp_path / "reference", tmp_path / "ours"]
    expected_names, actual_names = ({path.name for path in folder.iterdir()} for folder in folders)
    assert actual_names == expected_names
    assert {"checkpoint-2", "checkpoint-4", "model.safetensors"} < expected_names
    expected_content, actual_content = (left_in(folder / "checkpoint-4") for folder in folders)
    assert differences(expected_content, actual_content) == []
    assert "policy.first.weight" not in expected_content["weights"]
    assert "first.weight" in expected_content["weights"]
    assert expected_content["state"]["stateful_callbacks"]["Counting"]["attributes"] == {"saved": 1}


@pytest.mark.parametrize("arguments", [{"save_total_limit": 1}, {"save_only_model": True}], ids=str)
def test_own_loop_heeds_the_arguments(reference, ours, tmp_path, arguments):
    trained(reference, tmp_path / "reference", **arguments)
    trainer = trained(ours, tmp_path / "ours", **arguments)
    trainer._lightrainer.checkpoint_saver.wait_until_flushed()  # older checkpoints are removed then
    checkpoints, actual = (
        {path.parent.name for path in (tmp_path / name).glob("checkpoint-*/model.safetensors")}
        for name in ("reference", "ours")
    )
    assert actual == checkpoints
    optimizers, actual = (
        len(list((tmp_path / name).rglob("optimizer.pt"))) for name in ("reference", "ours")
    )
    assert actual == optimizers == (0 if "save_only_model" in arguments else 1)
