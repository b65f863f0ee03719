"""Scripts written for 4.x: names that were changed are understood, with a warning, where names
are served.
"""

import json

import pytest

from helpers import HELPERS
from helpers.processes.plain_pythons import forked, last_json
from lightrainer.facade.arguments.old_names import OLD_NAMES

SCRIPT = HELPERS / "scripts" / "old_style_script.py"

# What is given, and what the arguments then are.
INPUTS_TOO = {"include_for_metrics": ["loss", "inputs"]}
HONOURED = [
    ({"adafactor": True}, {"optim": "adafactor"}),
    (
        {"dispatch_batches": False, "split_batches": True},
        {"dispatch_batches": False, "split_batches": True},
    ),
    ({"evaluate_during_training": True}, {"eval_strategy": "steps"}),
    ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
    ({"fp16_backend": "amp"}, {"fp16": False}),
    ({"fp16_opt_level": "O2"}, {"fp16": False}),
    ({"fsdp_min_num_params": 0}, {"fsdp": []}),
    ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
    ({"half_precision_backend": "auto"}, {"bf16": False}),
    ({"include_inputs_for_metrics": True, "include_for_metrics": ["loss"]}, INPUTS_TOO),
    ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
    ({"jit_mode_eval": False}, {"torch_compile": False}),
    ({"mp_parameters": ""}, {"output_dir": "out"}),
    ({"no_cuda": True}, {"use_cpu": True}),
    ({"overwrite_output_dir": True}, {"output_dir": "out"}),
    ({"past_index": -1}, {"output_dir": "out"}),
    ({"per_gpu_eval_batch_size": 3}, {"per_device_eval_batch_size": 3}),
    ({"per_gpu_train_batch_size": 5}, {"per_device_train_batch_size": 5}),
    ({"push_to_hub_model_id": "m"}, {"hub_model_id": "m"}),
    ({"push_to_hub_organization": None}, {"output_dir": "out"}),
    ({"push_to_hub_token": "hf_x"}, {"hub_token": "hf_x"}),
    ({"ray_scope": "last"}, {"output_dir": "out"}),
    ({"save_safetensors": False}, {"output_dir": "out"}),
    ({"sharded_ddp": ""}, {"fsdp": []}),
    ({"torchdynamo": "eager"}, {"torch_compile_backend": "eager"}),
    ({"tpu_metrics_debug": False}, {"debug": []}),
    ({"tpu_num_cores": 8}, {"output_dir": "out"}),
    ({"use_ipex": False}, {"output_dir": "out"}),
    ({"use_legacy_prediction_loop": True}, {"output_dir": "out"}),
    ({"use_mps_device": True}, {"output_dir": "out"}),
    ({"xpu_backend": "gloo"}, {"ddp_backend": "gloo"}),
    ({"fsdp_transformer_layer_cls_to_wrap": None}, {"fsdp": []}),
    # Both names with one value are no contradiction.
    ({"evaluation_strategy": "epoch", "eval_strategy": "epoch"}, {"eval_strategy": "epoch"}),
    (
        {"evaluation_strategy": "steps", "no_cuda": True},
        {"eval_strategy": "steps", "use_cpu": True},
    ),
]
REFUSED = [
    ({"fp16_backend": "apex"}, "fp16_backend='apex'"),
    ({"use_ipex": True}, "torch_compile=True"),
    ({"push_to_hub_organization": "o"}, "hub_model_id='organization/name'"),
    ({"ray_scope": "all"}, "hyperparameter_search(scope=...)"),
    (
        {"evaluation_strategy": "epoch", "eval_strategy": "steps"},
        "eval_strategy='steps' is passed too",
    ),
    ({"per_gpu_train_batch_size": -1}, "per_device_train_batch_size"),
    ({"push_to_hub_token": "hf_secret", "hub_token": "other"}, "hub_token=..."),
]


@pytest.fixture(scope="module")
def found(without_library, tmp_path_factory):
    cases = json.dumps([*HONOURED, *REFUSED_CASES])
    return last_json(
        forked(
            without_library, SCRIPT, served=True, cwd=tmp_path_factory.mktemp("old"), input=cases
        )
    )


REFUSED_CASES = [(given, {}) for given, _ in REFUSED]


def test_old_style_names_are_all_tried():
    assert {name for arguments, _ in HONOURED for name in arguments} >= OLD_NAMES.keys()


@pytest.mark.parametrize(
    "number", range(len(HONOURED)), ids=[" ".join(given) for given, _ in HONOURED]
)
def test_old_style_arguments_become_new_ones(found, number):
    arguments, expected = HONOURED[number]
    values, warned, in_script = found[f"case {number}"]
    assert values == expected
    old = sorted(name for name in arguments if name in OLD_NAMES)
    assert sorted(text.split()[0] for text in warned) == old
    assert all(
        "transformers 4" in text and OLD_NAMES[text.split()[0]].replacement_text in text
        for text in warned
    )
    assert in_script  # the warning points to the line of the script


@pytest.mark.parametrize(
    "number", range(len(REFUSED)), ids=[" ".join(given) for given, _ in REFUSED]
)
def test_old_style_that_cannot_be_is_refused(found, number):
    _, reason = REFUSED[number]
    text, _, _ = found[f"case {len(HONOURED) + number}"]
    assert isinstance(text, str), text
    assert reason in text
    assert text.split(":")[0] in ("RemovedFeatureError", "ValueError", "TypeError")
    assert "hf_secret" not in text


def test_norm_layers_are_imported_from_the_module_of_the_trainer(found):
    assert found["norm_layers"] == ["LayerNorm"]


def test_attributes_by_their_old_names(found):
    overwrite, safetensors, strategy, warned, now, unknown, listed = found["attributes"]
    assert (overwrite, safetensors, strategy, now) == (True, True, "no", "epoch")
    assert "eval_strategy" in warned[0]
    assert not unknown
    assert not listed


def test_subclasses_of_the_arguments(found):
    """Dataclasses with more fields, one of them named like an old argument, and constructors that
    pass arguments on.
    """
    assert found["subclasses"] == ["epoch", ["all", []], True, 3]


def test_old_style_command_line_and_dict(found):
    assert found["command line"] == ["epoch", True, 3, True, 0.25, 4, False, True]


def test_old_style_trainer_and_override_signatures(found):
    warned, in_script, tokenizer, attribute, calls, both, misspelt, seq2seq = found["trainer"]
    assert ["processing_class" in text for text in warned] == [True]
    assert in_script == [True]
    assert tokenizer == attribute == "a tokenizer"
    assert calls == ["_get_train_sampler", "compute_loss", "log", "training_step"]
    assert both.startswith("ValueError: tokenizer is called processing_class now")
    assert misspelt.startswith("TypeError: ")
    assert seq2seq == "t"


def test_elsewhere_they_are_errors_as_in_the_reference(without_library, tmp_path):
    """Negative control: nothing is understood where nothing is served."""
    code = "import json; from lightrainer import TrainingArguments as made\n"
    code += "try: made('o', no_cuda=True)\nexcept TypeError as error: said = str(error)\n"
    code += "print(json.dumps([said, hasattr(made('o', report_to='none'), 'no_cuda')]))"
    text, is_known = last_json(forked(without_library, "-c", code, cwd=tmp_path))
    assert "no_cuda" in text
    assert "use_cpu" in text
    assert not is_known
