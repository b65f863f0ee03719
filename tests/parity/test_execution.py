"""How the model is executed (precision of evaluations, compilation, the plain random order) gives the same bits."""

import pytest
import torch
from datasets_for_parity import point_data
from harness import Case, assert_parity, run
from models import Classifier

# Compiling with a backend that leaves the operations alone is quick, and everything around it is the real thing.
CASES = {
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "evaluation in bfloat16": {"bf16_full_eval": True, "eval_strategy": "epoch"},
    "checkpoints and evaluations, compiled": {
        "torch_compile_backend": "eager",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
    },
    "an order that comes from the global generator": {"accelerator_config": {"use_seedable_sampler": False}},
}


@pytest.mark.parametrize("name", CASES)
def test_execution(reference, ours, tmp_path, name):
    torch._dynamo.reset()
    assert_parity(reference, ours, Case(Classifier, point_data, CASES[name]), tmp_path)


def test_the_plain_order_is_another_one(ours, tmp_path):
    """Negative control: the argument changes the order of the data."""
    case = Case(Classifier, point_data)
    plain = case.but(arguments=CASES["an order that comes from the global generator"])
    seedable, global_ = (run(ours, one, tmp_path / name) for one, name in ((case, "a"), (plain, "b")))
    assert [entry.get("loss") for entry in seedable.history] != [entry.get("loss") for entry in global_.history]


@pytest.mark.parametrize(("argument", "dtype"), [("bf16_full_eval", torch.bfloat16), ("fp16_full_eval", torch.float16)])
def test_a_full_evaluation_casts_the_model(ours, tmp_path, argument, dtype):
    """Outside of a training; what is trained stays float32."""
    actual = run(ours, Case(Classifier, point_data, {"num_train_epochs": 1}), tmp_path)
    setattr(actual.trainer.args, argument, True)
    assert {tensor.dtype for tensor in actual.trainer.model.parameters()} == {torch.float32}
    seen = {}
    actual.trainer.prediction_step = lambda model, *a, **k: (
        seen.update(dtype=next(model.parameters()).dtype) or (torch.tensor(0.0), None, None)
    )
    actual.trainer.evaluate()
    assert seen == {"dtype": dtype}


def test_a_compiled_model_is_compiled(ours, tmp_path):
    """Negative control of the cases above: the compiler really was given the model."""
    torch._dynamo.reset()
    compiled = []

    def backend(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.register_backend(backend, name="counting_for_a_test")
    arguments = {"torch_compile_backend": "counting_for_a_test", "num_train_epochs": 1}
    run(ours, Case(Classifier, point_data, arguments), tmp_path)
    assert compiled
