"""Callbacks are called in the same order, at the same steps, with the same flags."""

import pytest

from helpers.comparing.bit_differences import differences, without_clock
from helpers.parity.event_sequences import BY_EPOCH, BY_STEPS, EVENTS, FLAGS
from helpers.parity.harness import Case, assert_parity
from helpers.parity.parity_datasets import point_data, points
from helpers.parity.parity_models import Classifier


def recorder(api, entries: list):
    """A callback of the library `api` that notes each event and what it could see."""

    def note(event):
        def hook(self, args, state, control, **kwargs):
            flags = {name: getattr(control, name) for name in FLAGS}
            place = (state.global_step, state.epoch, len(state.log_history))
            gradients = None
            if event in (
                "on_pre_optimizer_step",
                "on_optimizer_step",
                "on_step_end",
                "on_substep_end",
            ):
                gradients = [
                    parameter.grad is not None for parameter in kwargs["model"].parameters()
                ]
            rate = None
            if event in ("on_optimizer_step", "on_step_end", "on_train_begin"):
                rate = kwargs["optimizer"].param_groups[0]["lr"]
            values = {
                key: without_clock(kwargs[key]) for key in ("logs", "metrics") if key in kwargs
            }
            names = sorted(key for key, value in kwargs.items() if value is not None)
            entries.append([event, place, flags, gradients, rate, values, names])

        return hook

    return type("Recorder", (api.TrainerCallback,), {event: note(event) for event in EVENTS})()


SITUATIONS = {
    "accumulation with a remainder": {"gradient_accumulation_steps": 4},
    "evaluation and saving": {
        **BY_STEPS,
        "save_steps": 4,
        "gradient_accumulation_steps": 2,
        "eval_on_start": True,
    },
    "everything by epoch": BY_EPOCH,
}


def events_of(reference, ours, case, folder):
    """Run both with a recorder as the last callback; the two lists of events."""
    recorded = {}
    original = case.extras

    def extras(api):
        keywords = original(api)
        recorded[api] = []
        return {
            **keywords,
            "callbacks": [*keywords.get("callbacks", []), recorder(api, recorded[api])],
        }

    assert_parity(reference, ours, case.but(extras=extras), folder)
    return recorded[reference], recorded[ours]


@pytest.mark.parametrize("name", SITUATIONS)
def test_events_sequence(reference, ours, tmp_path, name):
    case = Case(Classifier, point_data, SITUATIONS[name], test=lambda: points(7, seed=21))
    expected, actual = events_of(reference, ours, case, tmp_path)
    mismatches = differences(expected, actual, "events")
    assert not mismatches, "\n".join(mismatches[:20])
    assert {"on_init_end", "on_train_begin", "on_step_end", "on_train_end"} <= {
        event[0] for event in actual
    }
