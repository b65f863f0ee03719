"""Nested tensors and arrays: ours and the reference on the same ones, bit for bit."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from same_values import same
from transformers import trainer_pt_utils

from lightrainer.facade.compat import nested


def test_the_comparison_sees_differences():
    """Negative control."""
    assert not same([torch.ones(1)], [torch.zeros(1)])
    assert not same(np.ones(1), np.ones(1, dtype=np.float32))
    assert not same((1,), [1])
    assert not same({"a": 1}, OrderedDict(a=1))


def tensors(*shapes, kind=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(shape, generator=generator).to(kind) for shape in shapes]


A, B, C, D = tensors((2, 3), (3, 5), (4,), (2, 4, 2))
CASES = {
    "torch_pad_and_concatenate": [(A, B), (A, B, 7), (C, C), (torch.tensor(1.0), torch.tensor(2.0)), (D, D[:, :3])],
    "numpy_pad_and_concatenate": [(A.numpy(), B.numpy()), (C.numpy(), C.numpy(), 3), (D.numpy(), D[:, :2].numpy(), 0)],
    "nested_concat": [
        (A, B),
        ([A, (C,)], [B, (C,)]),
        ({"x": A}, {"x": B}, 5),
        (A.numpy(), B.numpy()),
        ((A.numpy(), {"y": C.numpy()}), (B.numpy(), {"y": C.numpy()}), 9),
    ],
    "find_batch_size": [
        (A,),
        ([[], {"x": D}],),
        ({"a": "text", "b": C.numpy()},),
        (torch.tensor(1),),
        ("text",),
        ([],),
    ],
    "nested_detach": [([A.clone().requires_grad_(), {"x": 3}],)],
    "nested_numpify": [([A, (B,)],), ({"x": A.bfloat16()},)],
    "nested_new_like": [(A.numpy(), 5), ([A.numpy(), D.numpy()], 3, 0), (D.numpy(), 4, 1)],
    "expand_like": [(A.numpy(), 6), (D.numpy(), 4, 2), (np.arange(6).reshape(2, 3), 5, -1)],
    "nested_truncate": [([A, {"x": C}], 1), (B.numpy(), 2)],
    "atleast_1d": [(torch.tensor(1),), (np.float64(2),), (A,)],
}


@pytest.mark.parametrize("name", CASES)
def test_nested_tensors(name):
    for given in CASES[name]:
        assert same(getattr(nested, name)(*given), getattr(trainer_pt_utils, name)(*given)), given


@pytest.mark.parametrize(("left", "right"), [(A, A.numpy()), ([A], (A,)), ("a", "b"), (1, 2)])
def test_what_cannot_be_joined_is_refused_alike(left, right):
    with pytest.raises((AssertionError, TypeError)) as ours:
        nested.nested_concat(left, right)
    with pytest.raises(type(ours.value)):
        trainer_pt_utils.nested_concat(left, right)


@pytest.mark.parametrize("join", [True, False])
def test_the_container_of_an_evaluation(join):
    made = [module.EvalLoopContainer(do_nested_concat=join, padding_index=-1) for module in (nested, trainer_pt_utils)]
    for container in made:
        assert container.get_arrays() is None
        for batch in ((A, [C]), (B, [C])):
            container.add(batch)
        container.to_cpu_and_numpy()
        assert container.tensors is None
        container.add((A, [C]))
    assert same(made[0].get_arrays(), made[1].get_arrays())
