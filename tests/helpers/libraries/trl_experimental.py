"""Distillation, and what TRL calls experimental, of the version that is there; PPO has a loop of
its own.
"""

import functools
import importlib
import os
import sys

import trl
from datasets import Dataset

from helpers.libraries.tiny_models import (
    arguments,
    causal_lm,
    classifier,
    complete,
    record,
    sentences,
    token_classifier,
    tokenizer,
    train_and_resume,
)
from helpers.libraries.trl_online import likes_order
from helpers.libraries.trl_preferences import judged, pairs
from helpers.libraries.trl_sft import chats

GENERATED = {"max_completion_length": 6, "max_prompt_length": 16, "num_generations": 2}
TWICE = {"gradient_accumulation_steps": 2}


def prompts(count: int, seed: int) -> Dataset:
    """The first word of each sentence."""
    return Dataset.from_dict({"prompt": [text.split()[0] for text in sentences(count, seed)]})


def tokens(count: int, seed: int) -> Dataset:
    """The same as tokens."""
    words = tokenizer()
    return (
        prompts(count, seed)
        .map(lambda one: {"input_ids": words(one["prompt"])["input_ids"]})
        .remove_columns("prompt")
    )


def questions(count: int, seed: int) -> Dataset:
    """Prompts as chats, and what helps to answer them."""
    texts = sentences(count, seed)
    messages = [[{"role": "user", "content": text.split()[0]}] for text in texts]
    return Dataset.from_dict({"prompt": messages, "privileged_context": texts})


def steps(count: int, seed: int) -> Dataset:
    """A prompt, the steps of an answer, and whether they are right."""
    texts = [text.split() for text in sentences(count, seed)]
    labels = [[number % 2 == 0 for number in range(len(words) - 1)] for words in texts]
    return Dataset.from_dict(
        {
            "prompt": [words[0] for words in texts],
            "completions": [w[1:] for w in texts],
            "labels": labels,
        }
    )


def make(
    output_dir: str,
    name: str,
    data,
    *,
    home: str = "trl",
    model=causal_lm,
    given=dict,
    side="right",
    **more,
):
    """A trainer of TRL by its name; `given` makes what it needs besides."""
    module = importlib.import_module(home)
    words = tokenizer()
    words.padding_side = side
    args = getattr(module, f"{name}Config")(**arguments(output_dir, bf16=False, **more))
    return getattr(module, f"{name}Trainer")(
        model=model(),
        args=args,
        train_dataset=data(24, 0),
        eval_dataset=None if more.get("eval_strategy") == "no" else data(8, 1),
        processing_class=words,
        **given(),
    )


def experimental(module: str, name: str, data, **more):
    return functools.partial(make, name=name, data=data, home=f"trl.experimental.{module}", **more)


def answers(count: int, seed: int) -> Dataset:
    """Answers that are judged, apart from their prompts by a space."""
    return judged(count, seed).map(lambda one: {"completion": " " + one["completion"]})


def chat_samples(count: int, seed: int) -> Dataset:
    return chats(sentences(count, seed))


def taught() -> dict:
    """A teacher."""
    return {"teacher_model": causal_lm(2)}


def referred() -> dict:
    """A reference."""
    return {"ref_model": causal_lm(2)}


def rewarded() -> dict:
    """A reward by a function."""
    return {"reward_funcs": likes_order}


def judged_by_model() -> dict:
    """A reward by a model, and a reference."""
    return {"reward_funcs": classifier(), **referred()}


ONLINE = {
    "max_new_tokens": 6,
    "max_length": 40,
    "eval_strategy": "no",
}  # TRL cannot evaluate these
SHORT = {"max_length": 32}


def trainers(base: str) -> dict:
    """Return the arguments of both versions; `base` is a folder with a model, which some load as
    a reference.
    """
    self_taught = {**GENERATED, "model": lambda: base}
    return {
        "gkd": experimental(
            "gkd", "GKD", chat_samples, given=taught, max_new_tokens=6, **SHORT, **TWICE
        ),
        "cpo": experimental("cpo", "CPO", pairs, **SHORT),
        "orpo": experimental("orpo", "ORPO", pairs, **SHORT, **TWICE),
        "gmpo": experimental(
            "gmpo", "GMPO", prompts, given=rewarded, max_completion_length=6, num_generations=4
        ),
        "online_dpo": experimental(
            "online_dpo", "OnlineDPO", prompts, given=lambda: rewarded() | referred(), **ONLINE
        ),
        "sdft": experimental(
            "sdft", "SDFT", questions, **self_taught, **TWICE, distillation_topk=5
        ),
        "sdpo": experimental(
            "sdpo", "SDPO", prompts, given=rewarded, **self_taught, distillation_topk=5
        ),
    }


NEWEST = {
    "distillation": functools.partial(
        make, name="Distillation", data=prompts, given=taught, max_completion_length=6, **TWICE
    ),
}
OLDER = {
    "distillation": experimental(
        "distillation",
        "Distillation",
        chat_samples,
        given=taught,
        max_completion_length=6,
        max_length=40,
        **TWICE,
    ),
    "bco": experimental("bco", "BCO", answers, given=referred, **SHORT),
    "prm": experimental("prm", "PRM", steps, model=token_classifier, **SHORT),
    "nash_md": experimental("nash_md", "NashMD", prompts, given=judged_by_model, **ONLINE, **TWICE),
}


def ppo(output_dir: str):
    """It never calls the constructor of the Trainer, and has its own training loop."""
    networks = {
        "ref_model": causal_lm(2),
        "reward_model": classifier(),
        "value_model": classifier(seed=3),
    }
    options = {
        "response_length": 6,
        "num_ppo_epochs": 2,
        "num_mini_batches": 2,
        "total_episodes": 48,
    }
    make_it = experimental(
        "ppo", "PPO", tokens, given=lambda: networks, side="left", max_steps=-1, **options, **TWICE
    )
    return make_it(output_dir)


def main(folder: str) -> None:
    base = os.path.join(folder, "base")
    with complete(base) as place:
        causal_lm().save_pretrained(place)
        tokenizer().save_pretrained(place)
    is_newest = tuple(map(int, trl.__version__.split(".")[:2])) >= (1, 10)
    for kind, make_it in (trainers(base) | (NEWEST if is_newest else OLDER)).items():
        place = os.path.join(folder, kind)
        train_and_resume(make_it, place, evaluates=make_it.keywords.get("eval_strategy") != "no")
    if not is_newest:
        trainer = ppo(os.path.join(folder, "ppo"))
        trainer.train()
        trainer.save_model(os.path.join(folder, "ppo", "final"))
        record(os.path.join(folder, "ppo"), trainer)


if __name__ == "__main__":
    main(sys.argv[1])
