"""A study in a real PostgreSQL server, as several machines would use it; skipped where there is
no server.
"""

import getpass
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.processes.forking import free_port
from helpers.search.small_searches import goes_on_after_a_kill, random_sampler, searcher, space
from lightrainer.facade.search.storages import disconnect


def program(name):
    """Where Debian and Fedora put what is not meant for everybody's PATH."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), Path("/usr/pgsql/bin")]
    return shutil.which(
        name, path=os.pathsep.join([*map(str, sorted(places, reverse=True)), os.environ["PATH"]])
    )


def server_user():
    """PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return getpass.getuser()
    return next((user.pw_name for user in pwd.getpwall() if user.pw_name == "postgres"), None)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server, which is stopped in the end."""
    pytest.importorskip("psycopg")
    initdb, pg_ctl, user = program("initdb"), program("pg_ctl"), server_user()
    if initdb is None or pg_ctl is None or user is None:
        pytest.skip("needs a PostgreSQL server")
    folder = Path("/tmp") / tmp_path_factory.mktemp("postgresql").name  # sockets need a short path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    shutil.chown(folder, user)
    port, data = free_port(), folder / "data"

    def run(*command):
        subprocess.run(
            command,
            user=user if os.getuid() == 0 else None,
            cwd=folder,
            check=True,
            capture_output=True,
        )

    try:
        run(initdb, "-D", str(data), "-A", "trust", "-U", "tester")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run(pg_ctl, "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        yield f"postgresql+psycopg://tester:secret@127.0.0.1:{port}/postgres"
        run(pg_ctl, "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_postgresql_two_workers_and_a_resumption(server, tmp_path):
    trainer = searcher(tmp_path)
    options = {
        "storage": server,
        "study_name": "shared",
        "load_if_exists": True,
        "sampler": random_sampler(),
    }
    trainer.hyperparameter_search(space, n_trials=4, n_jobs=2, **options)
    assert [trial.state.name for trial in trainer.study.trials] == ["COMPLETE"] * 4
    disconnect(trainer.study._storage)
    again = searcher(tmp_path)
    best = again.hyperparameter_search(space, n_trials=1, **options)
    assert len(again.study.trials) == 5
    assert best.objective == min(trial.value for trial in again.study.trials)
    disconnect(again.study._storage)


def test_postgresql_trial_of_a_killed_process_is_retried(server, tmp_path):
    disconnect(goes_on_after_a_kill(tmp_path, server).study._storage)
