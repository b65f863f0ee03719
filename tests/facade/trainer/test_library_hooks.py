"""Behaviour that libraries with subclasses of the Trainer rely on; `docs/develop/promises.md` names
the libraries.

Each test does what one of them does, and looks at what becomes of it. The trainings of the
libraries themselves are in `tests/libraries`.
"""

import functools
import inspect
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from helpers.trainer.plain_seq2seq import seq2seq_trainer
from helpers.trainer.tiny_trainings import At as Calls
from helpers.trainer.tiny_trainings import (
    arguments,
    losses,
    make_trainer,
    points,
    same_bits,
    split,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import DefaultFlowCallback, Trainer, TrainerCallback, default_data_collator
from lightrainer.facade.accelerator.accelerator import Accelerator
from lightrainer.facade.arguments import old_names
from lightrainer.facade.arguments.exports import export_precision
from lightrainer.facade.distributed.process import has_accelerate_state

HOOKS = split("""
    _get_dataloader _get_eval_sampler _get_output_dir _get_train_sampler _inner_training_loop
    _issue_warnings_after_load _load_best_model _load_from_checkpoint _load_optimizer_and_scheduler
    _maybe_log_save_evaluate _prepare_inputs
    _push_from_checkpoint _save _save_checkpoint _set_signature_columns_if_needed call_model_init
    compute_loss_context_manager create_accelerator_and_postprocess create_model_card get_decay_parameter_names
    get_tp_size
    """)
ATTRIBUTES = split("""
    _eval_dataloaders _globalstep_last_logged _signature_columns _total_loss_scalar _tr_loss _train_batch_size
    accelerator args callback_handler can_return_loss compute_loss_func control
    current_gradient_accumulation_steps data_collator hub_model_id is_deepspeed_enabled is_fsdp_enabled
    is_in_train label_names label_smoother loss_is_scaled_for_ga lr_scheduler model_accepts_loss_kwargs
    model_init model_wrapped optimizer processing_class push_in_progress state
    """)
ACCELERATOR = split("""
    autocast backward dataloader_config device even_batches gather gather_for_metrics is_local_main_process
    is_main_process local_process_index mixed_precision num_processes pad_across_processes parallelism_config prepare
    prepare_data_loader prepare_model print process_index reduce split_between_processes state sync_gradients
    torch_device_mesh unwrap_model wait_for_everyone
    """)


def test_library_hooks_exist(tmp_path):
    trainer = make_trainer(tmp_path)
    assert [name for name in (*HOOKS, *ATTRIBUTES) if not hasattr(trainer, name)] == []
    assert [name for name in ACCELERATOR if not hasattr(trainer.accelerator, name)] == []
    assert trainer.accelerator.dataloader_config.dispatch_batches is None
    assert (
        trainer.args.distributed_state.distributed_type
        == trainer.accelerator.distributed_type
        == "NO"
    )
    assert trainer.get_tp_size() == 1


def test_library_hooks_are_named_on_the_page():
    page = (Path(__file__).resolve().parents[3] / "docs" / "develop" / "promises.md").read_text(
        encoding="utf-8"
    )
    assert [name for name in (*HOOKS, *ATTRIBUTES, *ACCELERATOR) if f"`{name}" not in page] == []


RESERVED = {"_lightrainer", "_lightning_callbacks", "_advice", "_old_names", "_with_current_names"}
"""Private names of a Trainer that the reference does not have."""


def private_names(source):
    return {name for name in source if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("name", ["Trainer", "Seq2SeqTrainer"])
def test_private_names_are_free_for_subclasses(tmp_path, name):
    """A Trainer that has run has no other private names than the reference, up to a few."""
    if name == "Trainer":
        trainer = trained_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch")
    else:
        trainer = seq2seq_trainer(tmp_path)
        trainer.evaluate()
    reference = getattr(transformers, name)
    reference_names = private_names(dir(reference))
    for cls in reference.__mro__[:-1]:
        reference_names |= set(re.findall(r"self\.(_\w+)", inspect.getsource(cls)))
    assert private_names({*dir(trainer), *vars(trainer)}) - reference_names == RESERVED


def test_private_names_of_a_subclass_do_not_disturb_the_training(tmp_path):
    """Names that components, or methods of this package, have had."""
    names = """
        adopt_model apply_arguments callback_states checkpoint_saver components context_parallel
        data_position fit_run generate hub model_preparation object_store parts run search signals
        strategy
        """

    class Busy(Trainer):
        def __init__(self, *args, **kwargs):
            for name in split(names):
                setattr(self, f"_{name}", name)
            super().__init__(*args, **kwargs)

    plain = trained_trainer(tmp_path / "plain", save_strategy="steps", save_steps=2, max_steps=4)
    busy = trained_trainer(
        tmp_path / "busy", Busy, save_strategy="steps", save_steps=2, max_steps=4
    )
    assert same_bits(weights(busy.model), weights(plain.model))
    assert [getattr(busy, f"_{name}") for name in split(names)] == split(names)


class OwnLoss(Trainer):
    """Computes its loss itself, as trainers of preferences and of answers do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def scaling(folder, function, cls=OwnLoss):
    """The weights after one step of two micro-batches; a value in the place of a function says
    that it is scaled.
    """
    trainer = make_trainer(
        folder, cls, gradient_accumulation_steps=2, max_steps=1, optim="sgd", max_grad_norm=0
    )
    trainer.model_accepts_loss_kwargs, trainer.compute_loss_func = False, function
    trainer.train()
    return trainer.model.first.weight.detach().clone()


@pytest.mark.parametrize("declared", [True, False])
def test_library_class_declares_a_scaled_loss(tmp_path, declared):
    """As from 5.19 on: the attribute gives the same weights as what older versions check, which it
    overrides.
    """
    cls = type("Says", (OwnLoss,), {"loss_is_scaled_for_ga": declared})
    expected = scaling(tmp_path, "not None" if declared else None)
    assert torch.equal(scaling(tmp_path, None if declared else "not None", cls), expected)


class Repeated(Sampler):
    """Each sample twice, in the order of its own generator."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return 2 * len(self.source)

    def __iter__(self):
        order = torch.randperm(len(self.source), generator=torch.Generator().manual_seed(1))
        return iter(order.repeat_interleave(2).tolist())


class Generating(OwnLoss):
    """Reads prompts in larger batches than it trains on, buffers what it makes of them, and
    counts tokens.
    """

    def __init__(self, *positional, **keywords):
        super().__init__(*positional, **keywords)
        self.read, self.buffer, self.loaded = [], [], []
        self.accelerator.dataloader_config.dispatch_batches = False

    def get_train_dataloader(self):
        size, sampler = self._train_batch_size * 2, self._get_train_sampler
        return self._get_dataloader(
            self.train_dataset, "Training", size, sampler_fn=sampler, is_training=True
        )

    def _get_train_sampler(self, dataset=None):
        return Repeated(self.train_dataset if dataset is None else dataset)

    def _get_eval_sampler(self, eval_dataset):
        return Repeated(eval_dataset)

    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        if not self.model.training:
            return inputs
        self.read.append(len(inputs["labels"]))
        self.state.num_input_tokens_seen += 10
        return {name: value[:3] for name, value in inputs.items()}

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.loaded.append(checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)


def test_library_trainer_that_generates_its_data(tmp_path):
    """Its sampler, its batches, its counts; and its hook is called on the way to the first step."""
    trainer = trained_trainer(
        tmp_path, Generating, max_steps=3, save_strategy="steps", save_steps=2
    )
    assert trainer.read == [8, 8, 8]
    assert trainer.state.num_input_tokens_seen == 30
    assert trainer.num_examples(trainer.get_eval_dataloader()) == 6
    assert sum(len(batch["labels"]) for batch in trainer.get_eval_dataloader()) == 12
    resumed = trained_trainer(
        tmp_path, Generating, max_steps=3, resume=str(tmp_path / "checkpoint-2")
    )
    assert trainer.loaded == []
    assert resumed.loaded == [str(tmp_path / "checkpoint-2")]
    assert resumed.state.num_input_tokens_seen == 30
    assert same_bits(weights(resumed.model), weights(trainer.model))


class OwnLoader(Trainer):
    """Makes its loaders with torch and prepares them, as those of sentence-transformers does."""

    own_batches = False

    def get_train_dataloader(self):
        self.accelerator.even_batches = False
        sampler = RandomSampler(self.train_dataset, generator=torch.Generator())
        how = {"batch_size": 4, "sampler": sampler}
        if self.own_batches:
            how = {"batch_sampler": type("Own", (BatchSampler,), {})(sampler, 4, False)}
        loader = DataLoader(self.train_dataset, collate_fn=self.data_collator, **how)
        self._train_dataloader = self.accelerator.prepare(loader)
        return self._train_dataloader


@pytest.mark.parametrize("own_batches", [False, True])
def test_prepared_loaders_give_what_those_of_the_trainer_give(tmp_path, own_batches):
    """Bit for bit, over three epochs, and after a resumption in the middle of the second one."""
    expected = trained_trainer(tmp_path, num_train_epochs=3)
    cls = type("Own", (OwnLoader,), {"own_batches": own_batches})
    trainer = trained_trainer(
        tmp_path, cls, num_train_epochs=3, save_strategy="steps", save_steps=6
    )
    assert losses(trainer) == losses(expected)
    assert same_bits(weights(trainer.model), weights(expected.model))
    resumed = trained_trainer(
        tmp_path, cls, num_train_epochs=3, resume=str(tmp_path / "checkpoint-6")
    )
    assert losses(resumed) == losses(expected)
    assert same_bits(weights(resumed.model), weights(expected.model))


class OwnGroups(OwnLoss):
    """Trains the weights of its loss too, and gives the optimizer its groups."""

    def __init__(self, *positional, **keywords):
        super().__init__(*positional, **keywords)
        self.loss = nn.Linear(1, 1).to(self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs) * self.loss.weight.abs().sum()
        return (loss, {}) if return_outputs else loss

    def get_optimizer_cls_and_kwargs(self, args, model=None):
        cls, keywords = super().get_optimizer_cls_and_kwargs(args, self.loss)
        assert not {"params", "model", "optimizer_dict"} & set(keywords)
        keywords["optimizer_dict"] = [
            {"params": list(self.model.parameters()), "weight_decay": 0.5},
            {"params": list(self.loss.parameters()), "weight_decay": 0.0},
        ]
        return cls, keywords


def test_groups_of_parameters_may_come_with_the_optimizer(tmp_path):
    trainer = make_trainer(tmp_path, OwnGroups)
    before = trainer.loss.weight.item()
    trainer.train()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.5, 0.0]
    assert trainer.loss.weight.item() != before


SAVING = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


class OwnFiles(Trainer):
    """Writes and reads models in its own format."""

    def _save(self, output_dir=None, state_dict=None):
        torch.save(self.model.state_dict(), f"{output_dir or self.args.output_dir}/own.pt")

    def _load_from_checkpoint(self, checkpoint_path):
        self.model.load_state_dict(torch.load(f"{checkpoint_path}/own.pt", weights_only=True))

    def _load_best_model(self):
        self.best = self.state.best_model_checkpoint
        self._load_from_checkpoint(self.best)


def test_library_hooks_save_and_load_an_own_format(tmp_path):
    """Saved, resumed from, and the best one loaded."""
    trainer = trained_trainer(tmp_path, OwnFiles, load_best_model_at_end=True, **SAVING)
    assert not (tmp_path / "checkpoint-2" / "model.safetensors").exists()
    assert trainer.best == trainer.state.best_model_checkpoint
    resumed = trained_trainer(
        tmp_path,
        OwnFiles,
        load_best_model_at_end=True,
        **SAVING,
        resume=str(tmp_path / "checkpoint-2"),
    )
    assert same_bits(weights(resumed.model), weights(trainer.model))


def test_library_hook_warns_of_names_after_its_own_loading(tmp_path, caplog):
    trainer = make_trainer(tmp_path)
    saved = dict(trainer.model.state_dict())
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(saved, strict=False))
    assert caplog.records == []

    saved["other.weight"] = saved.pop("first.weight")
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(saved, strict=False))
    missing, unexpected = [record.getMessage() for record in caplog.records]
    assert "first.weight" in missing
    assert "other.weight" in unexpected


class StopsAtTwo(DefaultFlowCallback):
    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        control.should_training_stop |= state.global_step == 2
        return control


class NotOurs:
    """Stands for a callback of transformers itself, where its names are not served."""


@pytest.mark.parametrize(
    ("defaults", "steps", "last"),
    [
        ({}, 4, "PrinterCallback"),
        (
            {"DEFAULT_CALLBACKS": [StopsAtTwo], "PrinterCallback": TrainerCallback},
            2,
            "TrainerCallback",
        ),
        ({"DEFAULT_CALLBACKS": [NotOurs], "PrinterCallback": NotOurs}, 4, "PrinterCallback"),
    ],
    ids=["ours", "replaced", "of transformers"],
)
def test_library_replaces_the_default_callbacks(tmp_path, monkeypatch, defaults, steps, last):
    module = ModuleType("transformers.trainer")
    vars(module).update(defaults)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    trainer = trained_trainer(tmp_path)
    assert trainer.state.global_step == steps
    assert type(trainer.callback_handler.callbacks[-1]).__name__ == last


def test_library_that_replaces_methods_of_accelerate_is_told(tmp_path, monkeypatch, caplog):
    accelerator = pytest.importorskip("accelerate").Accelerator
    trained_trainer(tmp_path / "as it is")
    assert "not called here" not in caplog.text

    @functools.wraps(accelerator.clip_grad_norm_)
    def clip(self, *positional, **keywords):
        raise AssertionError

    monkeypatch.setattr(accelerator, "clip_grad_norm_", clip)
    trained_trainer(tmp_path / "replaced")
    replaced = f"{__name__} has replaced accelerate.Accelerator.clip_grad_norm_, "
    assert caplog.text.count(replaced) == 1


OWN_NAMES = split("""
    _best_metric _checkpoints _prepared _run _running_loss _strategy _token_counter _training_steps plan
    """)
"""Names that transformers leaves free, and scripts use."""


class NamesItsOwn(Trainer):
    def __init__(self, *positional, **keywords):
        vars(self).update(dict.fromkeys(OWN_NAMES, 0))
        super().__init__(*positional, **keywords)
        for name in OWN_NAMES:
            setattr(self, name, getattr(self, name) + 1)

    def compute_loss(self, *positional, **keywords):
        self._running_loss += 1
        return super().compute_loss(*positional, **keywords)


def test_library_may_use_names_that_transformers_leaves_free(tmp_path):
    best = {"load_best_model_at_end": True, **SAVING}
    trainer = trained_trainer(tmp_path / "own", NamesItsOwn, **best)
    assert same_bits(
        weights(trainer.model), weights(trained_trainer(tmp_path / "plain", **best).model)
    )
    assert trainer._running_loss > 4
    assert {getattr(trainer, name) for name in OWN_NAMES if name != "_running_loss"} == {1}


class Plans(Trainer):
    def plan(self):
        """Have nothing to do with the plan of a run."""
        raise AssertionError


def test_library_may_have_a_method_plan(tmp_path):
    assert trained_trainer(tmp_path, Plans, **SAVING).state.global_step == 4


class CollatesEvaluations(Trainer):
    def __init__(self, *positional, **keywords):
        self.eval_data_collator = CountsBatches()
        super().__init__(*positional, **keywords)


class CountsBatches:
    def __init__(self):
        self.count = 0

    def __call__(self, samples):
        self.count += 1
        return default_data_collator(samples)


def test_library_may_set_the_collator_of_evaluations_before_the_construction(tmp_path):
    trainer = trained_trainer(
        tmp_path, CollatesEvaluations, eval_strategy="epoch", num_train_epochs=1
    )
    assert trainer.eval_data_collator.count == len(trainer.get_eval_dataloader())


class Evaluated(Trainer):
    """Has an evaluator in the place of data: a name goes to the constructor, and no batches to
    the loop.
    """

    def __init__(self, *positional, **keywords):
        super().__init__(*positional, **{**keywords, "eval_dataset": "dummy"})
        assert self.eval_dataset == "dummy"
        self.eval_dataset = None

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader([])

    def evaluation_loop(
        self, dataloader, description, *positional, metric_key_prefix="eval", **keywords
    ):
        output = super().evaluation_loop(dataloader, description, *positional, **keywords)
        self.in_train, self.in_evaluation_mode = self.is_in_train, not self.model.training
        output.metrics.update({f"{metric_key_prefix}_quality": 0.5})
        return output


def test_library_evaluator_instead_of_data(tmp_path):
    best = {"metric_for_best_model": "eval_quality", "load_best_model_at_end": True}
    modes = []
    look = Calls("on_pre_optimizer_step", lambda trainer, *_: modes.append(trainer.model.training))
    trainer = make_trainer(tmp_path, Evaluated, callbacks=[look], **SAVING, **best)
    with_trainer_in_callbacks(trainer).train()
    assert trainer.in_train
    assert trainer.in_evaluation_mode
    assert modes == [True] * 4
    assert trainer.state.best_metric == 0.5
    assert trainer.evaluate()["eval_quality"] == 0.5
    assert not trainer.in_train


@pytest.mark.parametrize(
    "name",
    [
        "_finalize_training",
        "_run_epoch",
        "_tune_save_checkpoint",
        "_update_auto_batch_size",
        "_wrap_model",
    ],
)
def test_overrides_that_are_never_called_are_refused(tmp_path, name):
    cls = type("Overriding", (Trainer,), {name: lambda self, *rest: None})
    with pytest.raises(
        NotImplementedError, match=f"Overriding overrides private methods.*\n- {name}: "
    ):
        make_trainer(tmp_path, cls)


def test_library_models_cannot_be_sharded_by_deepspeed(tmp_path):
    """No plugin can do it, so accessing the plugin raises; without the argument it is None."""
    args = arguments(tmp_path)
    state = Accelerator(args).state
    assert state.deepspeed_plugin is None
    args.deepspeed = ["full_shard"]
    with pytest.raises(NotImplementedError, match=r"accelerator\.state\.deepspeed_plugin"):
        state.deepspeed_plugin  # noqa: B018 - it raises
    assert (state.num_processes, state.mixed_precision) == (1, "no")


@pytest.fixture
def states():
    """The states of accelerate, empty at the beginning and at the end."""
    module = pytest.importorskip("accelerate.state")
    module.AcceleratorState._reset_state(reset_partial_state=True)
    yield module
    module.AcceleratorState._reset_state(reset_partial_state=True)
    old_names.set_old_names_accepted(False)


def test_accelerate_knows_the_process_where_names_are_served(tmp_path, states):
    """Its loggers and functions need that; it follows the arguments, and what agrees with them
    stays.
    """
    logger = pytest.importorskip("accelerate.logging").get_logger("any")
    old_names.set_old_names_accepted(True)
    args = arguments(tmp_path, bf16=True)
    logger.debug("there is a state")
    assert states.PartialState().device.type == args.device.type
    assert not states.is_initialized()
    Accelerator(args)
    assert states.AcceleratorState().mixed_precision == "bf16"
    Accelerator(arguments(tmp_path))
    assert states.AcceleratorState().mixed_precision == "no"
    pytest.importorskip("accelerate.utils").set_seed(3, device_specific=True)
    states.PartialState().marked = True
    arguments(tmp_path)
    assert states.PartialState().marked


@pytest.mark.parametrize(
    "variables",
    [
        {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_SYNC_MODULE_STATES": "true"},
        {"ACCELERATE_USE_DEEPSPEED": "true"},
        {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"},
    ],
    ids=["fsdp", "deepspeed", "parallelism_config"],
)
def test_export_precision_on_the_cpu_ignores_engines_of_the_launcher(
    tmp_path, states, monkeypatch, variables
):
    """accelerate has no use for them there, and makes settings that need a GPU, a package or
    more processes.
    """
    old_names.set_old_names_accepted(True)
    args = arguments(tmp_path, bf16=True, use_cpu=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    export_precision(args)
    assert states.AcceleratorState().mixed_precision == "bf16"
    assert {name: os.environ[name] for name in variables} == variables


def test_accelerate_is_left_alone_elsewhere(tmp_path, states):
    """Where nothing is served, and where the arguments are to follow what it says."""
    export_precision(arguments(tmp_path))
    assert not has_accelerate_state(states)
    old_names.set_old_names_accepted(True)
    states.PartialState(cpu=True).marked = True
    arguments(tmp_path, accelerator_config={"use_configured_state": True})
    assert states.PartialState().marked


def test_samples_of_a_hook(tmp_path):
    """`_set_signature_columns_if_needed` is overridden to say which columns are kept."""

    class Kept(Trainer):
        def _set_signature_columns_if_needed(self):
            self._signature_columns = ["x", "labels", "weight"]

    data = [{**sample, "weight": torch.tensor(1.0), "text": "left out"} for sample in points()]
    batch, *_ = make_trainer(tmp_path, Kept, train_dataset=data).get_train_dataloader()
    assert sorted(batch) == ["labels", "weight", "x"]
