"""What a sweep shows while it runs."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """One bar on stderr: trials done, and the best value.

    Args:
        study: of optuna.
        name: of the sweep, and what it does.
        total: trials that it is to have.
    """

    def __init__(self, study: Any, name: str, total: int) -> None:
        self.study, self.name, self.total = study, name, total

    def __enter__(self) -> Progress:
        from tqdm import tqdm

        self._bar = tqdm(total=self.total, desc=self.name, unit="trial", file=sys.stderr, dynamic_ncols=True)
        self._last, self._news = 0.0, None
        self.show(now=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self.show(now=True)
        self._bar.close()

    def show(self, now: bool = False) -> None:
        """Look at the study, once a second."""
        if not now and time.monotonic() - self._last < 1:
            return
        from .facade.search.retries import interrupted, state_of

        trials = self.study.get_trials(deepcopy=False)
        passed_on = interrupted(trials)
        states = [state_of(trial, passed_on) for trial in trials]
        self._bar.n = min(sum(state in ("COMPLETE", "PRUNED") for state in states), self._bar.total)
        shown = {name.lower(): states.count(name) for name in ("PRUNED", "FAIL", "INTERRUPTED") if name in states}
        best = {}
        if "COMPLETE" in states and len(self.study.directions) == 1:
            trial = self.study.best_trial
            best = {"best": f"{trial.value:.5g}", "by": f"run-{trial.system_attrs.get('failed_trial', trial.number)}"}
        self._bar.set_postfix({**best, **shown}, refresh=False)
        self._last = time.monotonic()
        news = (self._bar.n, best, shown)
        if now or sys.stderr.isatty() or news != self._news:  # in a file, a line a second would be too many
            self._news = news
            self._bar.refresh()
