"""Remove what a pruned trial wrote, and nothing else."""

from tiny import files

from lightrainer.facade.search.trial_folders import files_below, remove_all_but


def test_only_what_is_new_is_removed(tmp_path):
    folder, elsewhere = tmp_path / "run-0", tmp_path / "elsewhere"
    for place in (folder / "deep", elsewhere):
        place.mkdir(parents=True)
        (place / "precious.txt").touch()
    before = files_below(folder)
    (folder / "deep" / "new").mkdir()
    (folder / "deep" / "new" / "new.txt").touch()
    (folder / "link").symlink_to(elsewhere)
    remove_all_but(folder, before, made=False)
    assert files_below(folder) == before
    assert files(elsewhere) == ["precious.txt"]
    remove_all_but(folder, (), made=True)
    assert not folder.exists()
