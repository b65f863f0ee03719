"""The module's model: given or made later, noted in checkpoints, saved and loaded."""

import copy
import functools
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from torch.utils.data import DataLoader

from helpers.lightning.tiny_modules import Net, TokenNet, make_trainer, points, same_weights, seeded
from lightrainer.lightning_modules import (
    CausalLMModule,
    DataModule,
    LossModule,
    OptimizerConfig,
    ScheduleConfig,
    Seq2SeqModule,
)

DESCRIBED = {"class_path": "helpers.lightning.tiny_modules.Net", "init_args": {"width": 5}}


def loader():
    return DataLoader(points(), batch_size=4)


def saved(module, folder, **options):
    trainer = make_trainer(max_epochs=1, **options)
    trainer.fit(module, loader())
    trainer.save_checkpoint(folder / "module.ckpt")
    return folder / "module.ckpt"


class TestForms:
    @pytest.mark.parametrize(
        "source",
        [DESCRIBED, UserDict(DESCRIBED), lambda: Net(5), functools.partial(Net, width=5)],
    )
    def test_made_when_it_is_needed(self, source, tmp_path):
        module = LossModule(source, optimizer={"learning_rate": 0.1})
        assert module.model is None
        make_trainer(fast_dev_run=True).fit(module, loader())
        assert module.model.layers[0].out_features == 5
        first_model = module.model
        make_trainer().validate(module, loader(), verbose=False)
        assert module.model is first_model, "and once only"

    def test_model_module_without_a_model(self):
        with pytest.raises(TypeError, match=r"`model` is .*dict"):
            LossModule({"class": "Net"})
        with pytest.raises(TypeError, match="returned a int"):
            LossModule(lambda: 3).configure_model()

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            *(
                ("helpers.lightning.tiny_modules.Nett", "is not the path of a class"),
                ("nowhere.Net", "is not the path of a class"),
            ),
            *(("os.system", "is neither a Module"), ("subprocess.Popen", "is neither a Module")),
        ],
    )
    def test_class_paths_of_something_else(self, path, message):
        """They may come from any checkpoint: nothing is called that makes no model."""
        with pytest.raises(ValueError, match=message):
            LossModule({"class_path": path, "init_args": {}}).configure_model()


class TestCheckpoints:
    def test_model_module_described_model_needs_only_the_file(self, tmp_path):
        optimizer = OptimizerConfig(name="adamw_torch", learning_rate=0.1)
        schedule = ScheduleConfig(name="cosine", kwargs={"num_cycles": 1})
        module = LossModule(DESCRIBED, optimizer=optimizer, schedule=schedule, label_smoothing=0.1)
        path = saved(module, tmp_path)
        torch.load(path, weights_only=True)
        loaded = LossModule.load_from_checkpoint(path)
        assert same_weights(loaded.model, module.model)
        assert loaded.optimizer_config == module.optimizer_config
        assert loaded.schedule_config == module.schedule_config
        assert (loaded.label_smoothing, dict(loaded.hparams)) == (0.1, dict(module.hparams))

    @pytest.mark.parametrize("source", [Net, lambda: seeded(Net)], ids=["object", "function"])
    def test_model_module_needs_other_models_again_on_loading(self, tmp_path, source):
        module = LossModule(source() if source is Net else source, optimizer={"learning_rate": 0.1})
        path = saved(module, tmp_path)
        torch.load(path, weights_only=True)
        loaded = LossModule.load_from_checkpoint(path, model=Net())
        assert same_weights(loaded.model, module.model)
        assert loaded.learning_rate == 0.1
        with pytest.raises(TypeError, match=r"LossModule.load_from_checkpoint\(path, model=...\)"):
            LossModule.load_from_checkpoint(path)

    def test_model_module_subclass_with_own_arguments(self, tmp_path):
        """`save_hyperparameters()` notes them, and a config among them is written down in plain
        values.
        """
        path = saved(Mine(width=6, best=OptimizerConfig(learning_rate=0.2)), tmp_path)
        torch.load(path, weights_only=True)
        loaded = Mine.load_from_checkpoint(path)
        assert loaded.model.layers[0].out_features == 6
        assert loaded.learning_rate == 0.2


class Mine(LossModule):
    def __init__(self, width: int, best: OptimizerConfig | dict):
        super().__init__(Net(width), optimizer=best)
        self.save_hyperparameters()


class TestPretrained:
    def test_models_of_the_library(self, tmp_path):
        """Saved through their own `save_pretrained`, loaded through `from_pretrained`, by class
        or by its path.
        """
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(
            n_positions=16, n_embd=8, n_layer=1, n_head=2, vocab_size=11
        )
        module = CausalLMModule(transformers.GPT2LMHeadModel(config))
        module.save_pretrained(tmp_path / "saved")
        assert {"config.json", "model.safetensors"} <= {
            path.name for path in (tmp_path / "saved").iterdir()
        }
        path = "transformers.AutoModelForCausalLM"
        for kind in (transformers.AutoModelForCausalLM, path):
            options = {"model_kwargs": {"attn_pdrop": 0.5}, "optimizer": {"learning_rate": 0.3}}
            loaded = CausalLMModule.from_pretrained(kind, tmp_path / "saved", **options)
            assert same_weights(loaded.model, module.model)
            assert (loaded.learning_rate, loaded.model.config.attn_pdrop) == (0.3, 0.5)
        arguments = {"pretrained_model_name_or_path": str(tmp_path / "saved")}
        described = CausalLMModule(
            {"class_path": f"{path}.from_pretrained", "init_args": arguments}
        )
        described.configure_model()
        assert same_weights(described.model, module.model)

    def test_model_module_saves_other_models_as_weights(self, tmp_path):
        module = LossModule(seeded(Net))
        module.save_pretrained(tmp_path / "new" / "folder")
        weights = load_file(tmp_path / "new" / "folder" / "model.safetensors")
        torch.testing.assert_close(weights, dict(module.model.state_dict()), rtol=0, atol=0)

    def test_model_module_disables_the_cache_in_training(self):
        """As under the Trainer API; and on again after it."""
        model, cache_flags = seeded(Net), []

        model.config = SimpleNamespace(use_cache=True)
        model.register_forward_hook(lambda *_: cache_flags.append(model.config.use_cache))
        make_trainer(fast_dev_run=True).fit(
            LossModule(model, optimizer={"learning_rate": 0.1}), loader()
        )
        assert cache_flags == [False]
        assert model.config.use_cache


def test_smoothing_under_autocast_is_in_full_precision():
    """As under the Trainer API, which computes this loss outside of autocast."""
    model = seeded(Net)
    batch = next(iter(loader()))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch["x"])["logits"]
    expected = functional.cross_entropy(logits.float(), batch["labels"], label_smoothing=0.1)

    module = LossModule(model, label_smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module.training_step(batch, 0)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


class EncoderDecoder(torch.nn.Module):
    """Shifts labels to the right for its decoder, as the models of transformers do."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 7)

    def prepare_decoder_input_ids_from_labels(self, labels):
        return functional.pad(labels.clamp(min=0), (1, -1))

    def forward(self, input_ids, labels=None, decoder_input_ids=None):
        if labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_input_ids is None:
            raise ValueError("specify decoder_input_ids")
        logits = self.table(decoder_input_ids) + self.table(input_ids).mean(1, keepdim=True)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.movedim(-1, 1), labels)
        return {"loss": loss, "logits": logits}

    def generate(self, input_ids):
        return input_ids


@pytest.mark.parametrize("kind", [LossModule, Seq2SeqModule])
@pytest.mark.parametrize("form", ["mapping", "tuple", "with decoder inputs"])
def test_smoothing_of_a_decoder_makes_its_inputs_of_labels(kind, form):
    model = seeded(EncoderDecoder)
    ids, labels = torch.randint(7, (4, 5)), torch.randint(7, (4, 6))
    labels[0, 3:] = -100
    logits = model(ids, labels)["logits"].movedim(-1, 1)
    expected = functional.cross_entropy(logits, labels, label_smoothing=0.1)

    batch = {"input_ids": ids, "labels": labels}
    if form == "tuple":
        batch = (ids, labels)
    if form == "with decoder inputs":
        prepared = model.prepare_decoder_input_ids_from_labels(labels)
        batch["decoder_input_ids"] = prepared
    loss = kind(model, label_smoothing=0.1).training_step(batch, 0)
    torch.testing.assert_close(loss, expected)

    def smoothed(output, target):
        logits = output["logits"].movedim(-1, 1)
        return functional.cross_entropy(logits, target, label_smoothing=0.1)

    loss = kind(model, loss_fn=smoothed).training_step(batch, 0)
    torch.testing.assert_close(loss, expected)


@pytest.mark.cpu_only("weights in the graph that an error keeps cannot move to the CPU")
def test_smoothing_of_several_labels_makes_no_sense():
    model = seeded(Net)
    model.config = SimpleNamespace(problem_type="multi_label_classification")
    with pytest.raises(ValueError, match=r"label_smoothing=0.1 .*multi_label_classification"):
        make_trainer(fast_dev_run=True).fit(LossModule(model, label_smoothing=0.1), loader())


def test_copies_and_repeated_trainings():
    """Nothing of one training is left in the next: the noise is added once."""
    module = LossModule(seeded(TokenNet), optimizer={"learning_rate": 0.1}, neftune_noise_alpha=1.0)
    texts = DataModule(
        [{"input_ids": torch.ones(3).long(), "labels": torch.ones(3).long()}] * 4, batch_size=2
    )
    for _ in range(2):
        make_trainer(fast_dev_run=True).fit(copy.deepcopy(module), texts)
    assert not module.model.embedding._forward_hooks
