"""Every public member of the reference's accelerator is here, with its signature, or is refused
with a remedy.
"""

import inspect
import re
from pathlib import Path

import pytest

from helpers.trainer.tiny_trainings import arguments
from lightrainer.facade.accelerator.accelerator import Accelerator
from lightrainer.facade.accelerator.refusals import REFUSED

accelerate = pytest.importorskip("accelerate")
PAGE = Path(__file__).parents[3] / "docs" / "user" / "accelerator.md"
OWN = (
    "apply_accumulation args end_of_dataloader in_run keep_loader_position remainder "
    "renew_scaler strategy training"
)
OWN = {*OWN.split(), "micro_batch", "sync_each_batch"}
OTHER_SIGNATURES = {
    "backward": "learning_rate has its name",
    "trigger_sync_in_backward": "not a static method",
}


@pytest.fixture(scope="module")
def reference():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def ours(tmp_path):
    return Accelerator(arguments(tmp_path))


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_accelerator_leaves_out_no_member_silently(reference, ours):
    expected = public(reference)
    assert len(expected) > 100
    assert (
        sorted(name for name in expected if not hasattr(ours, name) and name not in REFUSED) == []
    )
    # the reference has it with DeepSpeed
    assert set(REFUSED) - expected == {"deepspeed_engine_wrapped"}
    assert public(ours) - expected == OWN


def test_accelerator_state_members(reference, ours):
    missing = {name for name in public(reference.state) if not hasattr(ours.state, name)}
    assert missing == {"dynamo_plugin", "get_deepspeed_plugin", "select_deepspeed_plugin"}
    missing = {
        name for name in public(reference.gradient_state) if not hasattr(ours.gradient_state, name)
    }
    assert missing == {"is_xla_gradients_synced"}


def test_signatures_are_those_of_the_reference(reference):
    """Names, order, kinds and defaults."""
    other = set()
    for name in public(accelerate.Accelerator) - set(REFUSED):
        theirs, ours = getattr(accelerate.Accelerator, name), getattr(Accelerator, name)
        if inspect.isfunction(theirs):
            left, right = (
                [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
                for method in (theirs, ours)
            )
            other |= {name} if left != right else set()
    assert other == set(OTHER_SIGNATURES)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why_and_what_to_do(ours, name):
    """Scripts may ask with hasattr; and none of them can be set, which would have no effect."""
    assert not hasattr(ours, name)
    assert getattr(ours, name, "nothing") == "nothing"
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': .{{20}}"):
        getattr(ours, name)
    if not hasattr(Accelerator, name):
        with pytest.raises(AttributeError, match=name):
            setattr(ours, name, 1)


def rows(heading):
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return re.findall(r"`([a-zA-Z_0-9]+)`", " ".join(cells))


def test_accelerator_page_names_all_members(reference, ours):
    """Each once, in the table to which it belongs."""
    supported, refused = rows("Supported members"), rows("Unsupported members")
    assert len(supported) == len(set(supported))
    assert set(supported) == public(reference) - set(REFUSED)
    assert sorted(refused) == sorted(REFUSED)
    assert all(hasattr(ours, name) for name in supported)
