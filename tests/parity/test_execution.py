"""That the model is really executed as asked; see argument_effects.py for the numbers that come of it."""

import pytest
import torch
from datasets_for_parity import point_data
from harness import Case, run
from models import Classifier


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
