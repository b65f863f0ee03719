"""Folders of `lightning.Trainer` in two processes hold the state of both, and go on to the same bits."""


def test_both_processes_go_on(two_ranks):
    """Dropout on: without the generators of each process other weights would come out."""
    first, second = two_ranks("lightrainer", "folders").ranks
    assert first == second
    files = first.pop("files")
    assert {"rng_state_0.pth", "rng_state_1.pth", "data_state_0.pth", "data_state_1.pth"} <= set(files)
    assert len(first) == 8
    assert set(first.values()) == {first["facade"]}
