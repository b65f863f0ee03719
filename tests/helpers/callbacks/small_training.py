"""A language model of some thousand weights, trained by the Trainer in a moment, for tests of
callbacks.
"""

import torch
from torch import nn
from torch.nn import functional

from helpers.devices.pretended_cuda import trains_on_device
from lightrainer import Trainer, TrainingArguments

WIDTH, WORDS, LENGTH = 16, 50, 12
FLOPS_PER_TOKEN = 6 * (3 * WIDTH * WIDTH + WIDTH * WORDS)
"""Two for each weight of a matrix and each token, in the forward pass and twice in the backward
pass.
"""


class LanguageModel(nn.Module):
    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.1)
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, labels=None):
        x = self.embedding(input_ids)
        for layer in self.h:
            x = x + self.dropout(torch.tanh(layer(x)))
        logits = self.lm_head(x)
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


def sentences(count=64, seed=0):
    words = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in words]


def make_trainer(folder, callbacks=(), *, kind=Trainer, data=None, model=None, **changes):
    options = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 2,
    }
    options |= {
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    options |= {"use_cpu": not trains_on_device(), "dataloader_pin_memory": False}
    torch.manual_seed(3)
    return kind(
        LanguageModel() if model is None else model,
        TrainingArguments(str(folder), **{**options, **changes}),
        train_dataset=sentences() if data is None else data,
        eval_dataset=sentences(16, seed=1),
        callbacks=list(callbacks),
    )


def train_small(folder, callbacks=(), *, resume=None, **changes):
    trainer = make_trainer(folder, callbacks, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def training_logs(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same_bits(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[name].cpu(), right[name].cpu()) for name in left
    )
