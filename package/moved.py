"""Answer imports by the paths that modules had in version 0.1: pickles, YAML files and scripts hold them.

`training_args.bin` names the module of each enum in it, a file of LightningCLI those of classes. A path that is still
there is never looked up here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ROOT = __name__.rpartition(".")[0]

# Folders that were renamed with all that is in them, and the files in them that got another name.
FOLDERS = {
    "facade.accelerating": "facade.accelerator",
    "facade.helpers": "facade.compat",
    "lightning_modules.collators": "lightning_modules.data.collators",
    "lightning_modules.optimizers": "lightning_modules.optim",
    "lightning_modules.peers": "lightning_modules.distributed.health",
}
# Modules that define public names, or names of which a pickle may hold objects.
MODULES = {
    "facade.argument_parser": "facade.parser.argument_parser",
    "facade.enums": "facade.arguments.enums",
    "facade.helpers.hyperparameters": "facade.search.hyperparameters",
    "facade.helpers.zero": "facade.arguments.hf_deepspeed",
    "facade.metrics": "facade.evaluation.speed",
    "facade.notebooks": "facade.distributed.notebooks",
    "facade.plan": "facade.strategies.plan",
    "facade.results": "facade.evaluation.results",
    "facade.search.naming": "facade.search.folders",
    "facade.sizes": "lightning_modules.data.lengths",
    "lightning_modules.activations": "lightning_modules.models.activation_checkpointing",
    "lightning_modules.collators.sentence_order": "lightning_modules.data.collators.language_modeling",
    "lightning_modules.collators.stacking": "lightning_modules.data.collators.base",
    "lightning_modules.data_module": "lightning_modules.tasks.data_module",
    "lightning_modules.generation_config": "lightning_modules.models.generation_config",
    "lightning_modules.label_smoothing": "lightning_modules.training.label_smoothing",
    "lightning_modules.lengths": "lightning_modules.data.lengths",
    "lightning_modules.loaders": "lightning_modules.data.loaders",
    "lightning_modules.loss_module": "lightning_modules.tasks.loss_module",
    "lightning_modules.metrics": "lightning_modules.evaluation.metrics",
    "lightning_modules.model_output": "lightning_modules.models.model_output",
    "lightning_modules.names": "lightning_modules.common.suggestions",
    "lightning_modules.optimizers.config": "lightning_modules.optim.build",
    "lightning_modules.optimizers.optional": "lightning_modules.optim.libraries",
    "lightning_modules.peers.errors": "lightning_modules.distributed.health.failure_monitor",
    "lightning_modules.resumable": "lightning_modules.tasks.resumable",
    "lightning_modules.samplers": "lightning_modules.data.samplers",
    "lightning_modules.schedule_curves": "lightning_modules.common.schedule_curves",
    "lightning_modules.schedules": "lightning_modules.optim.schedules",
    "lightning_modules.seeding": "lightning_modules.common.seeding",
    "lightning_modules.seq2seq_module": "lightning_modules.tasks.seq2seq_module",
    "lightning_modules.task_modules": "lightning_modules.tasks.task_modules",
    "lightning_modules.token_metrics": "lightning_modules.evaluation.metrics",
    "lightning_modules.underflow_overflow": "lightning_modules.models.underflow_overflow",
}


def moved_to(name: str) -> str | None:
    """Return where a module is now that was `name` in 0.1; None for all others."""
    root, _, inner = name.partition(".")
    if root != _ROOT:
        return None
    now = MODULES.get(inner)
    if now is None:
        folder = ".".join(inner.split(".")[:2])
        now = FOLDERS[folder] + inner[len(folder) :] if folder in FOLDERS else None
    return now and f"{_ROOT}.{now}"


class MovedModules(MetaPathFinder, Loader):
    """As Python's own finders, but for paths of 0.1: the module of today is what an import of one gives."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for a path of 0.1."""
        return ModuleSpec(fullname, self) if moved_to(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in the place of the empty one; classes must not exist twice."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(moved_to(name) or name)


def install() -> None:
    """Answer for paths of 0.1 from now on, before the finder that would load a renamed folder's files twice."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
