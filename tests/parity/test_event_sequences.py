"""The frozen parity test of events: steps, epochs, the model's mode, control flags, and what each
event is given.

`event_sequences.txt` holds what transformers 5.3.0 does in every situation of
`helpers/parity/event_sequences.py`. Reference and lightrainer are both held against it, so that
neither a change here nor another version there goes unnoticed. Where the reference is repaired
(`repairs.py`), it is the repaired one. `python tests/parity/freeze_event_sequences.py` writes the
file again.
"""

import dataclasses
from pathlib import Path

import pytest

from helpers.parity.event_sequences import (
    BY_STEPS,
    EVENTS,
    FLAGS,
    SITUATIONS,
    Situation,
    evaluate_and_predict,
    sequence,
)

FROZEN = Path(__file__).parent / "event_sequences.txt"


def frozen() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in FROZEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            lines = sections.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


drawn_otherwise = pytest.mark.cpu_only(
    "with the dropout of the device's generator another evaluation is the best"
)
NAMES = [
    pytest.param(name, marks=drawn_otherwise) if name == "the best is saved" else name
    for name in SITUATIONS
]


@pytest.mark.parametrize("name", NAMES)
def test_event_sequence_equals_the_frozen_one(reference, ours, tmp_path, name):
    expected = frozen()[name]
    assert sequence(reference, SITUATIONS[name], tmp_path / "reference") == expected
    assert sequence(ours, SITUATIONS[name], tmp_path / "ours") == expected


def test_event_sequences_freeze_every_situation_and_event():
    assert list(frozen()) == list(SITUATIONS)
    events = {line.split()[0] for lines in frozen().values() for line in lines}
    assert events - {"from", "log"} == set(EVENTS)
    assert len({tuple(lines) for lines in frozen().values()}) == len(SITUATIONS)


def setting(api, event, flag, control_is):
    """A callback that raises a flag in the second occurrence of an event, or the first where there
    is only one.

    In the control that it is given, or in a new one that it returns.
    """
    at = 1 if event in ("on_init_end", "on_train_begin", "on_train_end", "on_predict") else 2

    class Setting(api.TrainerCallback):
        calls = 0

    def hook(self, args, state, control, **kwargs):
        self.calls += 1
        if self.calls != at:
            return None
        if control_is == "new":
            control = dataclasses.replace(control)
        setattr(control, flag, True)
        return control if control_is == "new" else None

    setattr(Setting, event, hook)
    return Setting()


@pytest.mark.parametrize("event", EVENTS)
def test_event_sequence_with_any_flag_in_any_event(reference, ours, tmp_path, event):
    """Each of the five, in the middle of two epochs of three steps, and what follows from it."""
    different = set()
    intervals = {**BY_STEPS, "eval_steps": 4, "save_steps": 2 if event == "on_save" else 100}
    for index, flag in enumerate(FLAGS):
        control_is = ("the same", "new")[index % 2]
        situation = Situation(
            {**intervals, "gradient_accumulation_steps": 2, "logging_steps": 4},
            lambda api, flag=flag, kind=control_is: [setting(api, event, flag, kind)],
            then=evaluate_and_predict,
        )
        expected = sequence(reference, situation, tmp_path / "reference" / flag)
        assert sequence(ours, situation, tmp_path / "ours" / flag) == expected, flag
        different.add(tuple(expected))
    assert len(different) > 2, "the flags made no difference, so nothing was shown"
