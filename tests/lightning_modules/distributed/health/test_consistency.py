"""Differences between the settings of processes are listed by name."""

from lightrainer.lightning_modules.distributed.health.consistency import differences


def test_differences_are_listed_with_their_ranks():
    facts = [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "2", "b": "x", "c": "new"}]
    assert differences(facts) == [
        "- a: 2 in processes 1, 2, 1 in process 0",
        "- c: missing in processes 0, 1, new in process 2",
    ]
