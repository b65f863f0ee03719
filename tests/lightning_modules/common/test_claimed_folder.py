"""Folders that belong to one owner."""

import threading

from lightrainer.lightning_modules.common.claimed_folder import claim_folder, is_claimed


def test_claim_folder_is_the_same_for_one_owner_and_another_for_others(tmp_path):
    (tmp_path / "run-0").mkdir()
    assert claim_folder(tmp_path, "run-0", "a") == tmp_path / "run-0"  # it was empty
    assert claim_folder(tmp_path, "run-0", "a") == tmp_path / "run-0"
    assert claim_folder(tmp_path, "run-0", "b") == tmp_path / "run-0-2"
    assert is_claimed(tmp_path / "run-0-2", "b")
    assert not is_claimed(tmp_path / "run-0-2", "a")


def test_claim_folder_leaves_alone_what_has_no_owner(tmp_path):
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "thesis.tex").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run-0-2").symlink_to(tmp_path / "elsewhere")
    assert claim_folder(tmp_path, "run-0", "a") == tmp_path / "run-0-3"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_claim_folder_of_processes_that_start_at_once(tmp_path):
    """Two owners, with four threads each."""
    claimed = {"a": set(), "b": set()}
    threads = [
        threading.Thread(
            target=lambda owner=owner: claimed[owner].add(claim_folder(tmp_path, "run", owner))
        )
        for owner in "abababab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]
    assert len(claimed["a"]) == len(claimed["b"]) == 1
