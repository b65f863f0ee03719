"""Batches that are tuples, lists or one tensor, as Lightning users start with, and their own loss
function.
"""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import CLASSES, ROWS, Bare, make_trainer, same_weights, seeded
from lightrainer.lightning_modules import (
    CausalLMModule,
    DataModule,
    LossModule,
    Seq2SeqModule,
    SequenceClassificationModule,
    TokenClassificationModule,
    set_seed,
)
from lightrainer.lightning_modules.tasks.batch_inputs import count_targets

TOKENS = torch.randint(1, 11, (12, 5), generator=torch.Generator().manual_seed(1))
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}


def network(outputs=3, dropout=0.0):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, outputs))


class OwnLoss(Bare):
    """Takes both parts of a batch, and returns its loss."""

    def forward(self, x, y):
        logits = self.layer(x)
        return functional.cross_entropy(logits, y), logits


class Distance(Bare):
    """Returns its loss for one tensor."""

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


class TwoInputs(Bare):
    def forward(self, left, right):
        return self.layer(left + right)


def as_lists(samples):
    """A collate function whose batches are lists."""
    return [torch.stack(part) for part in zip(*samples, strict=True)]


accuracy = {"accuracy": MulticlassAccuracy(3, average="micro")}
CASES = {
    "classifier": (
        lambda: LossModule(network(), loss_fn=nn.CrossEntropyLoss(), metrics=accuracy),
        (ROWS, CLASSES),
    ),
    "regression": (
        lambda: LossModule(network(1), loss_fn=nn.MSELoss(), metrics={"mse": MeanSquaredError()}),
        (ROWS, ROWS.sum(1, keepdim=True)),
    ),
    "autoencoder": (
        lambda: LossModule(network(4), loss_fn=nn.MSELoss(), metrics=MeanSquaredError()),
        (ROWS,),
    ),
    "two inputs": (
        lambda: LossModule(TwoInputs(), loss_fn=nn.CrossEntropyLoss()),
        (ROWS, -ROWS + 1, CLASSES),
    ),
    "model's own loss": (lambda: LossModule(OwnLoss(), metrics=accuracy), (ROWS, CLASSES)),
    "smoothed": (
        lambda: LossModule(Bare(), label_smoothing=0.1, metrics=accuracy),
        (ROWS, CLASSES),
    ),
    "one tensor": (lambda: LossModule(Distance()), (ROWS,)),
    "sequences": (lambda: SequenceClassificationModule(network(), num_labels=3), (ROWS, CLASSES)),
    "tokens": (
        lambda: TokenClassificationModule(
            nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 4)), num_labels=4
        ),
        (TOKENS, TOKENS % 4),
    ),
    "next token": (
        lambda: CausalLMModule(nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))),
        (TOKENS,),
    ),
}


@pytest.mark.parametrize("through", ["loader", "lists", "data module"])
@pytest.mark.parametrize("name", CASES)
def test_tuple_batches_first_example_of_lightning_runs(name, through):
    """Training, validation, test and predictions, with metrics; the loss of what is learned
    becomes smaller.
    """
    make, tensors = CASES[name]
    dataset = TensorDataset(*tensors)
    torch.manual_seed(0)
    module = make()
    module.learning_rate = 0.05
    loaders = {
        "data module": lambda: {
            "datamodule": DataModule(dataset, dataset, dataset, dataset, batch_size=4)
        },
        "lists": lambda: {"dataloaders": DataLoader(dataset, batch_size=4, collate_fn=as_lists)},
        "loader": lambda: {"dataloaders": DataLoader(dataset, batch_size=4)},
    }[through]()
    trainer = make_trainer(max_epochs=3, accumulate_grad_batches=2)
    before = trainer.validate(module, **loaders)[0]
    trainer.fit(module, *loaders.values())
    after = trainer.validate(module, **loaders)[0]
    assert after["val_loss"] < before["val_loss"]
    assert math.isclose(
        trainer.test(module, **loaders)[0]["test_loss"], after["val_loss"], rel_tol=1e-6
    )
    assert len(trainer.predict(module, **loaders)) == math.ceil(len(dataset) / 4)
    if module.metrics is not None:
        assert len(after) > 1, "the metrics are logged beside the loss"


def test_tuples_for_a_model_that_generates():
    model = tokens_to(11)
    model.generate = lambda input, **options: input[:, :3]
    module = Seq2SeqModule(
        model, metrics={"accuracy": MulticlassAccuracy(11, average="micro")}, pad_token_id=0
    )
    trainer, loader = (
        make_trainer(max_epochs=1),
        DataLoader(TensorDataset(TOKENS, TOKENS), batch_size=4),
    )
    trainer.fit(module, loader, loader)
    assert "val_accuracy" in trainer.callback_metrics
    assert torch.equal(torch.cat(trainer.predict(module, loader)), TOKENS[:, :3])


def test_inputs_may_have_names_and_labels_none():
    """`({"x": ...}, y)`: what a tokenizer gave, and a label."""
    samples = [({"x": x}, y) for x, y in zip(ROWS, CLASSES, strict=True)]
    module, trainer = (
        LossModule(Bare(), loss_fn=nn.CrossEntropyLoss(), optimizer=SGD),
        make_trainer(max_epochs=1),
    )
    trainer.fit(module, DataModule(samples, batch_size=4))
    assert trainer.predict(module, DataLoader(samples, batch_size=4))[0].shape == (4, 3)


def test_predictions_of_inputs_without_labels():
    """The same module, and data that has no labels any more: of one input, and of several."""
    trainer = make_trainer()
    module = LossModule(network(), loss_fn=nn.CrossEntropyLoss())
    assert torch.cat(
        trainer.predict(module, DataLoader(TensorDataset(ROWS), batch_size=4))
    ).shape == (
        22,
        3,
    )
    two = LossModule(TwoInputs(), loss_fn=nn.CrossEntropyLoss())
    predicted = torch.cat(
        trainer.predict(two, DataLoader(TensorDataset(ROWS, ROWS), batch_size=22))
    )
    assert torch.equal(predicted, two.model(ROWS, ROWS))


class Flat(nn.Module):
    """The cross entropy of tokens: torch wants the classes in the second dimension."""

    reduction, ignore_index = "mean", -100

    def forward(self, output, target):
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())


class Keywords(nn.Sequential):
    """Logits of tokens, from a model that takes whatever it is given."""

    def forward(self, input_ids, **kwargs):
        return super().forward(input_ids)


def tokens_to(classes, kind=nn.Sequential):
    return kind(nn.Embedding(11, 6), nn.Linear(6, classes))


def gapped(labels, every):
    """Labels of which some do not count, not equally many in each row."""
    labels = labels.clone()
    labels.view(-1)[::every] = -100
    return labels


NUMBERS = ROWS[:12, 0].clone()
CLASS_WEIGHTS = torch.tensor([0.1, 0.3, 0.02])
LOGITS_ONLY = {
    "next token": (lambda: CausalLMModule(tokens_to(11)), (TOKENS, gapped(TOKENS, 3))),
    "next token, labels missing": (lambda: CausalLMModule(tokens_to(11)), (TOKENS,)),
    "next token, keywords": (
        lambda: CausalLMModule(tokens_to(11, Keywords)),
        (TOKENS, gapped(TOKENS, 3)),
    ),
    "next token, smoothed": (
        lambda: CausalLMModule(tokens_to(11), label_smoothing=0.1),
        (TOKENS, gapped(TOKENS, 3)),
    ),
    "a loss function": (
        lambda: LossModule(tokens_to(11), loss_fn=Flat()),
        (TOKENS, gapped(TOKENS, 3)),
    ),
    "class weights": (
        lambda: LossModule(network(), loss_fn=nn.CrossEntropyLoss(CLASS_WEIGHTS)),
        (ROWS[:12], gapped(CLASSES[:12], 5)),
    ),
    "a partial function": (
        lambda: LossModule(
            network(), loss_fn=partial(functional.cross_entropy, weight=CLASS_WEIGHTS)
        ),
        (ROWS[:12], gapped(CLASSES[:12], 5)),
    ),
    "tokens": (
        lambda: TokenClassificationModule(tokens_to(4), num_labels=4),
        (TOKENS, gapped(TOKENS % 4, 7)),
    ),
    "pairs": (lambda: Seq2SeqModule(tokens_to(11)), (TOKENS, gapped(TOKENS.flip(1), 7))),
    "sequences": (
        lambda: SequenceClassificationModule(network(), num_labels=3),
        (ROWS[:12], gapped(CLASSES[:12], 5)),
    ),
    "numbers": (
        lambda: SequenceClassificationModule(network(1), num_labels=1),
        (ROWS[:12], NUMBERS),
    ),
    "several labels": (
        lambda: SequenceClassificationModule(network(3)),
        (ROWS[:12], (ROWS[:12, :3] > 0).float()),
    ),
    "smoothed": (
        lambda: SequenceClassificationModule(Bare(), label_smoothing=0.1, metrics=False),
        (ROWS[:12], gapped(CLASSES[:12], 5)),
    ),
}
WINDOWS = [[3, 2, 1, 1], [1, 4]]  # the second one, at the end of the epoch, is shorter


@pytest.mark.parametrize("name", LOGITS_ONLY)
def test_accumulated_batches_make_the_step_of_one_batch(name):
    """Where the module computes the loss; batches are of different sizes, and one of them has no
    label that counts.
    """
    make, tensors = LOGITS_ONLY[name]
    if len(tensors) > 1 and not tensors[1].is_floating_point():
        tensors = (tensors[0], tensors[1].clone())
        tensors[1][5] = -100  # alone in its batch
    trained = []
    for sizes, accumulation in (
        ([*WINDOWS[0], *WINDOWS[1]], 4),
        ([sum(window) for window in WINDOWS], 1),
    ):
        torch.manual_seed(3)
        module = make()
        module.optimizer_config = SGD
        batches = [
            tuple(parts) for parts in zip(*(tensor.split(sizes) for tensor in tensors), strict=True)
        ]
        trainer = make_trainer(max_epochs=2, accumulate_grad_batches=accumulation)
        trainer.fit(module, DataLoader(batches, batch_size=None))
        assert trainer.global_step == 4
        trained.append((module.model.state_dict(), trainer.callback_metrics["train_loss"]))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("loss_fn", "labels", "counted"),
    [
        (nn.CrossEntropyLoss(), torch.tensor([1, -100, 2]), 2),
        (nn.CrossEntropyLoss(ignore_index=2), torch.tensor([1, 2, 2]), 1),
        (functional.cross_entropy, torch.tensor([1, -100, 2]), 2),
        (nn.MSELoss(), torch.zeros(3, 2), 6),
        (nn.KLDivLoss(reduction="batchmean"), torch.zeros(3, 2), 3),
        (nn.MSELoss(), (torch.zeros(3, 2), torch.zeros(3)), 3),
        (nn.MSELoss(reduction="sum"), torch.zeros(3, 2), None),
        (partial(functional.mse_loss, reduction="sum"), torch.zeros(3, 2), None),
        (nn.CrossEntropyLoss(CLASS_WEIGHTS), torch.tensor([0, -100, 2]), 6),
        (nn.MultiMarginLoss(weight=CLASS_WEIGHTS), torch.tensor([0, 1, 2]), 3),
    ],
)
def test_tuple_batches_loss_is_weighted_by_its_targets(loss_fn, labels, counted):
    count = count_targets(loss_fn, labels, torch.device("cpu"))
    assert (None if count is None else int(count)) == counted


def test_tuple_batches_equal_mappings_bit_for_bit():
    """With dropout and the order of the Trainer API."""
    samples = [{"input": x, "labels": y} for x, y in zip(ROWS, CLASSES, strict=True)]
    trained = []
    for dataset in (TensorDataset(ROWS, CLASSES), samples):
        module = LossModule(
            seeded(network, dropout=0.3), loss_fn=nn.CrossEntropyLoss(), optimizer=SGD
        )
        set_seed(7)
        make_trainer(accumulate_grad_batches=2).fit(module, DataModule(dataset, batch_size=4))
        trained.append(module.model)
    assert same_weights(*trained)


def test_tuple_batches_described_loss_function_is_saved_and_moves(
    tmp_path,
):
    description = {
        "class_path": "torch.nn.CrossEntropyLoss",
        "init_args": {"label_smoothing": 0.2},
    }
    module = LossModule(network(), loss_fn=description, optimizer=SGD)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, DataLoader(TensorDataset(ROWS, CLASSES), batch_size=4))
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    again = LossModule.load_from_checkpoint(
        tmp_path / "module.ckpt", model=network(), weights_only=True
    )
    assert again.loss_fn.label_smoothing == 0.2
    weighted = LossModule(network(), loss_fn=nn.CrossEntropyLoss(torch.ones(3))).to("meta")
    assert weighted.loss_fn.weight.device.type == "meta"


def test_tuple_batches_model_without_a_loss_suggests_loss_fn():
    loader = DataLoader(TensorDataset(ROWS, ROWS), batch_size=4)
    with pytest.raises(ValueError, match=r"Tensor \(4, 4\), Tensor \(4, 4\).*`loss_fn`"):
        make_trainer(max_epochs=1).fit(LossModule(TwoInputs()), loader)


def test_tuple_batches_model_without_labels_argument_suggests_loss_fn():
    """An error inside of a model that takes them stays as it is."""
    loader = DataLoader(TensorDataset(ROWS, CLASSES), batch_size=4)
    with pytest.raises(TypeError, match=r"Sequential.forward\(input\).*`loss_fn`"):
        make_trainer(max_epochs=1).fit(LossModule(nn.Sequential(network())), loader)

    class Broken(nn.Module):
        def forward(self, x, labels):
            return len(1)

    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)$"):
        LossModule(Broken()).compute_loss((ROWS, CLASSES))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"loss_fn": nn.CrossEntropyLoss}, TypeError, r"the class CrossEntropyLoss"),
        ({"loss_fn": nn.Linear(1, 1)}, ValueError, "a Linear with parameters"),
        ({"loss_fn": nn.MSELoss(), "label_smoothing": 0.1}, ValueError, "label_smoothing=0.1"),
        (
            {"loss_fn": {"class_path": "torch.nn.CrossEntropyLos"}},
            ValueError,
            "is not the path of a class",
        ),
    ],
)
def test_loss_fn_that_is_not_a_function_is_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        LossModule(network(), **arguments)
