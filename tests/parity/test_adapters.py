"""Models of PEFT with one adapter or several: trained, interrupted, resumed, by both libraries,
bit for bit.
"""

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_same, run
from helpers.parity.interrupted_runs import interrupted
from helpers.parity.parity_datasets import class_data, point_data, sentence_data
from helpers.parity.parity_models import Classifier, bert, gpt2

peft = pytest.importorskip("peft")

RENAMED = pytest.mark.filterwarnings(
    "ignore:`(is_gradient_checkpointing|past_key_values)` is deprecated:FutureWarning"
)
"""PEFT 0.21 uses names that transformers deprecates since 5.23 and 5.24."""
DIRECTIONS = ["theirs resumed by ours", "ours resumed by theirs", "ours resumed by ours"]


def of_seed(make, seed=3):
    """The base comes from elsewhere and is always the same; what is drawn for adapters differs
    from run to run.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def lora(**more):
    """Nothing of it is zero, so that each adapter counts from the first step on."""
    return peft.LoraConfig(
        r=2, target_modules=["first"], lora_dropout=0.1, init_lora_weights=False, **more
    )


def adapted(*names, config=lora, train=None):
    """A classifier with adapters; the first of `train` is active, the others are trained beside
    it.
    """
    model = peft.get_peft_model(of_seed(Classifier), config(), adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, config())
    if train is not None:
        model.base_model.set_adapter(list(train))
    return model


def with_head():
    return lora(modules_to_save=["second"])


def prompted():
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    return peft.get_peft_model(of_seed(gpt2), config)


def mixed():
    """Adapters of two kinds, both active; PEFT cannot save such a model, so it is saved whole."""
    model = peft.get_peft_model(
        of_seed(bert), peft.LoHaConfig(r=2, target_modules=["query"]), mixed=True
    )
    model.add_adapter("other", peft.LoKrConfig(r=2, target_modules=["value"], init_weights=False))
    model.set_adapter(["default", "other"])
    return model


MODELS = {
    "one": lambda: adapted("default"),
    "one of another name": lambda: adapted("mine"),
    "a reference beside it": lambda: adapted("default", "ref"),
    "the default is the reference": lambda: adapted("default", "policy", train=["policy"]),
    "names that hold each other": lambda: adapted("ref", "default", "my_ref", train=["default"]),
    "all trained": lambda: adapted(
        "default", "second", "third", train=["second", "default", "third"]
    ),
    "with a head each": lambda: adapted("default", "ref", config=with_head),
    "infused": lambda: adapted(
        "default",
        "ref",
        config=lambda: peft.IA3Config(
            target_modules=["first"], feedforward_modules=[], init_ia3_weights=False
        ),
    ),
    "prompt": prompted,
    "mixed": mixed,
}


def case_of(name):
    return Case(MODELS[name], {"prompt": sentence_data, "mixed": class_data}.get(name, point_data))


@RENAMED
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_resumed(reference, ours, tmp_path, name, direction):
    if (name, direction) == ("all trained", "ours resumed by theirs"):
        pytest.skip("the reference freezes all adapters but one when it resumes")
    case = case_of(name)
    first = reference if direction.startswith("theirs") else ours
    second = reference if direction.endswith("theirs") else ours
    straight = run(ours, case, tmp_path / "straight")
    interrupted(first, case, 3, tmp_path / "stopped")
    checkpoint = tmp_path / "stopped" / "checkpoint-3"
    assert (checkpoint / "model.safetensors").exists() == (name == "mixed")
    resumed = run(second, case.but(model_seed=99), tmp_path / "new", resume=str(checkpoint))
    assert not differences(straight.weights, resumed.weights)
    for result in (straight, resumed):
        result.history[-1].pop("train_loss")
    before, after = straight.trainer.model, resumed.trainer.model
    assert before.active_adapters == after.active_adapters
    assert [p.requires_grad for p in before.parameters()] == [
        p.requires_grad for p in after.parameters()
    ]
    assert_same(straight, resumed, ignoring=("output", "trainer"))


def in_background(base):
    class InBackground(base):
        background_checkpoints = 0

    return InBackground


def test_adapters_best_of_all_is_loaded_at_the_end(ours, tmp_path):
    """Written while the training continues; and both are as they were after the best step."""
    goodness, trained = iter([0.5, 0.9, 0.1]), {}

    class Watch(ours.TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            trained[state.global_step] = {
                name: weight.cpu().clone() for name, weight in model.state_dict().items()
            }

    best = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4, "save_steps": 4}
    case = Case(
        MODELS["all trained"],
        point_data,
        {**best, "load_best_model_at_end": True, "metric_for_best_model": "good"},
        extras=lambda api: {
            "compute_metrics": lambda prediction: {"good": next(goodness)},
            "callbacks": [Watch()],
        },
        subclass=in_background,
    )
    result = run(ours, case, tmp_path)
    assert result.state["best_global_step"] == 8
    assert not differences(trained[8], result.weights)
    changed = [
        name for name in result.weights if not torch.equal(trained[8][name], trained[12][name])
    ]
    assert len(changed) == 2 * 3
    assert result.trainer.model.active_adapters == ["second", "default", "third"]


def p_tuned():
    config = peft.PromptEncoderConfig(
        num_virtual_tokens=2, encoder_hidden_size=4, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(of_seed(gpt2), config)


def with_projected_prefix():
    config = peft.PrefixTuningConfig(
        num_virtual_tokens=2, prefix_projection=True, encoder_hidden_size=4, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(of_seed(gpt2), config)


def with_a_trained_base_weight():
    model = adapted("default")
    model.get_parameter("base_model.model.norm.weight").requires_grad_(True)
    return model


LEFT_OUT = {
    "p-tuning": (p_tuned, sentence_data, gpt2),
    "prefix with a projection": (with_projected_prefix, sentence_data, gpt2),
    "a weight of the base": (with_a_trained_base_weight, point_data, Classifier),
}


@RENAMED
@pytest.mark.parametrize("best", [True, False], ids=["best", "last"])
def test_adapters_best_is_left_in_evaluation_mode(reference, ours, tmp_path, best):
    """Without a best adapter to load the model stays in training mode, up to transformers 5.3."""
    arguments = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "load_best_model_at_end": best,
        "max_steps": 5,
    }
    case = Case(MODELS["one"], point_data, arguments)
    modes = {}
    for api in (reference, ours):
        result = run(api, case, tmp_path / api.__name__)
        modes[api] = [module.training for module in result.trainer.model.modules()]
    assert modes[ours] == modes[reference]
    if reference.__version__ == "5.3.0":
        assert any(modes[ours]) is not best


@RENAMED
@pytest.mark.parametrize("name", LEFT_OUT)
def test_trained_weights_that_peft_leaves_out_are_resumed_and_the_best(ours, tmp_path, name):
    """The reference resumes with other weights or fails; PEFT reads the adapter as before."""
    model, data, base = LEFT_OUT[name]
    best = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    best |= {
        "load_best_model_at_end": True,
        "greater_is_better": True,
        "max_steps": 6,
        "learning_rate": 0.1,
    }
    trained = {}

    class Watch(ours.TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            trained[state.global_step] = {
                name: weight.cpu().clone() for name, weight in model.state_dict().items()
            }

    def first_is_best(api):
        return {
            "compute_metrics": lambda prediction: {"first": -len(trained)},
            "callbacks": [Watch()],
        }

    case = Case(model, data, {**best, "metric_for_best_model": "first"}, extras=first_is_best)
    whole = run(ours, case, tmp_path / "whole")
    assert whole.state["best_global_step"] == 3
    assert not differences(trained[3], whole.weights)

    straight = trained[6]
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    run(ours, case.but(model_seed=99), tmp_path / "on", resume=str(checkpoint))
    assert not differences(straight, trained[6])
    assert peft.PeftModel.from_pretrained(of_seed(base), checkpoint)

    for missing in ("trained_beside_adapter.safetensors", "_manifest.json"):
        (checkpoint / missing).unlink()
    if name == "a weight of the base":
        return
    with pytest.raises(ValueError, match="has only the encoded prompt of 'default'"):
        run(ours, case.but(model_seed=99), tmp_path / "without", resume=str(checkpoint))


def pruned():
    """Ranks are chosen from the importance of earlier steps until step 4, and masked later."""
    config = peft.AdaLoraConfig(
        target_modules=["first"],
        init_r=4,
        target_r=2,
        tinit=1,
        tfinal=4,
        deltaT=1,
        total_step=8,
    )
    return peft.get_peft_model(of_seed(Classifier), config)


@pytest.mark.parametrize("step", [2, 4, 6])
def test_adapters_that_choose_ranks_are_resumed(ours, tmp_path, step):
    """The reference cannot load such a checkpoint."""

    class Allocate(ours.TrainerCallback):
        def on_optimizer_step(self, args, state, control, model, **kwargs):
            model.base_model.update_and_allocate(state.global_step)

    case = Case(
        pruned,
        point_data,
        {"max_steps": 8, "learning_rate": 0.1, "save_strategy": "steps", "save_steps": step},
        extras=lambda api: {"callbacks": [Allocate()]},
    )
    straight = run(ours, case, tmp_path / "straight")
    checkpoint = tmp_path / "straight" / f"checkpoint-{step}"
    resumed = run(ours, case.but(model_seed=99), tmp_path / "new", resume=str(checkpoint))
    assert not differences(straight.weights, resumed.weights)
    ranks = straight.weights["base_model.model.first.lora_E.default"]
    assert 0 < int(ranks.count_nonzero()) < len(ranks)
