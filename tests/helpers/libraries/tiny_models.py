"""Models and tokenizers that the scripts of this folder make in place, and what a script writes
of its training.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
    set_seed,
)

WORDS = [
    "sun",
    "moon",
    "river",
    "stone",
    "wind",
    "leaf",
    "bird",
    "fish",
    "king",
    "queen",
    "road",
    "house",
    "fire",
]
CHAT = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' <eos> ' }}{% endfor %}"
OWNERS = ("transformers", "lightrainer")
LIBRARIES = (
    "trl",
    "sentence-transformers",
    "peft",
    "setfit",
    "transformers",
    "accelerate",
    "torch",
)
TIMES = ("runtime", "per_second", "time", "tokens_per")
EPISODES_PER_SECOND = "eps"  # of PPO


def sentences(count: int, seed: int = 0, length: tuple[int, int] = (3, 9)) -> list[str]:
    """Sentences of a few words, in which each word follows from the one before it half of the
    time.
    """
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [draw.choice(WORDS)]
        while len(words) < draw.randint(*length):
            after = WORDS[(WORDS.index(words[-1]) + 1) % len(WORDS)]
            words.append(after if draw.random() < 0.5 else draw.choice(WORDS))
        texts.append(" ".join(words))
    return texts


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, trained here, with a chat template."""
    special = [
        "<pad>",
        "<unk>",
        "<eos>",
        "<bos>",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "user",
        "assistant",
        "system",
    ]
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(
        [" ".join(WORDS)], trainers.WordLevelTrainer(special_tokens=special)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        bos_token="<bos>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        chat_template=CHAT,
        model_max_length=64,
    )


def llama_config(**changes) -> LlamaConfig:
    """One layer of width 16."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    words = tokenizer()
    return LlamaConfig(
        vocab_size=len(words),
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=words.bos_token_id,
        **{**sizes, "num_key_value_heads": 2, "max_position_embeddings": 64, **changes},
    )


def causal_lm(seed: int = 1) -> LlamaForCausalLM:
    """A tiny Llama."""
    set_seed(seed)
    return LlamaForCausalLM(llama_config())


def classifier(labels: int = 1, seed: int = 1) -> LlamaForSequenceClassification:
    """A tiny Llama with a head for `labels` labels."""
    set_seed(seed)
    return LlamaForSequenceClassification(llama_config(num_labels=labels))


def token_classifier(seed: int = 1) -> LlamaForTokenClassification:
    """A tiny Llama with a head for two labels of each token."""
    set_seed(seed)
    return LlamaForTokenClassification(llama_config(num_labels=2))


@contextlib.contextmanager
def complete(folder: str):
    """A place to write a folder in, which then appears all at once; of several processes the
    first one ready wins.
    """
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    place = tempfile.mkdtemp(dir=os.path.dirname(folder))
    yield place
    try:
        os.rename(place, folder)
    except OSError:
        shutil.rmtree(place)


def save_bert(folder: str, seed: int = 1, **changes) -> None:
    """A tiny BERT and its tokenizer, in a folder to load them from."""
    set_seed(seed)
    words = tokenizer()
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = BertConfig(
        vocab_size=len(words), max_position_embeddings=64, pad_token_id=words.pad_token_id, **sizes
    )
    model = BertModel(config)
    with complete(folder) as place:
        model.save_pretrained(place)
        words.save_pretrained(place)


def without_times(figures: dict) -> dict:
    """Metrics by their names; in the place of what depends on the clock None."""
    timed = [
        name
        for name in figures
        if name == EPISODES_PER_SECOND or any(word in name for word in TIMES)
    ]
    return {**figures, **dict.fromkeys(timed)}


def arguments(output_dir: str, **more) -> dict:
    """Training arguments of all these scripts: six steps, with an evaluation and a checkpoint
    after three of them.
    """
    return {
        "output_dir": output_dir,
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 3,
        "report_to": [],
        "use_cpu": True,
        **more,
    }


def train_and_resume(make, folder: str, *, evaluates: bool = True, **more):
    """Train, evaluate, save; then resume from the checkpoint in the middle; write the results of
    both.

    Args:
        make: makes the trainer, given an output folder.
        folder: for everything that is written.
        evaluates: whether it can be evaluated after the training.
        more: figures to write besides.

    Returns:
        the first trainer.
    """
    trainer = make(folder)
    result = trainer.train()
    metrics = trainer.evaluate() if evaluates else None
    trainer.save_model(os.path.join(folder, "final"))
    trainer.create_model_card()
    record(
        folder,
        trainer,
        train_loss=result.training_loss,
        summary=result.metrics,
        metrics=metrics,
        **more,
    )
    # in several processes on the CPU, 5.3.0 cannot read its own generators
    if trainer.args.world_size == 1:
        again = make(os.path.join(folder, "again"))
        again.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-3"))
        again.save_model(os.path.join(folder, "resumed"))
        record(os.path.join(folder, "again"), again)
    return trainer


def record(folder: str, trainer, **more) -> None:
    """Write the results of a training: whose Trainer it was, its logs, the norms of its weights,
    and other figures.
    """
    figures = {
        "trainer_of": owner_of(type(trainer)),
        "versions": {
            name: version(name) for name in LIBRARIES if name.replace("-", "_") in sys.modules
        },
        "step": trainer.state.global_step,
        "logs": logs_of(trainer),
        "norms": {
            name: parameter.detach().double().norm()
            for name, parameter in trainer.model.named_parameters()
        },
        **{
            name: without_times(value) if isinstance(value, dict) else value
            for name, value in more.items()
        },
    }
    if not trainer.is_world_process_zero():
        return
    os.makedirs(folder, exist_ok=True)
    Path(folder, "figures.json").write_text(json.dumps(figures, indent=1, default=_plain))


def owner_of(kind: type) -> str:
    """The package whose Trainer a class inherits."""
    base = next(
        cls
        for cls in kind.__mro__
        if cls.__name__ == "Trainer" and cls.__module__.split(".")[0] in OWNERS
    )
    return base.__module__.split(".")[0]


def logs_of(trainer) -> list[dict]:
    """The history of a training, without what the clock says."""
    return [without_times(entry) for entry in trainer.state.log_history]


def _plain(value):
    """A tensor, or a number of NumPy, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
