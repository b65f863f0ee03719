"""Write the tables of the guides that the code decides: `python docs/scripts/guide_tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. Columns that no code
decides, such as what an extra is for, are here.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import lightrainer.callbacks
from lightrainer.callbacks.loggers.availability import TRACKERS
from lightrainer.facade.accelerator.refusals import REFUSED as REFUSED_MEMBERS
from lightrainer.facade.arguments.deepspeed_config import REFUSED as REFUSED_KEYS
from lightrainer.facade.arguments.fsdp_config import REFUSED as REFUSED_KEYS_OF_FSDP
from lightrainer.facade.arguments.old_names import OLD_NAMES, Removed
from lightrainer.facade.distributed.launchers import LAUNCHERS, TORCHRUN
from lightrainer.facade.keras.arguments import UNSUPPORTED as REFUSED_ARGUMENTS
from lightrainer.facade.trainer.lightning_callbacks import REFUSED as REFUSED_CALLBACKS
from lightrainer.interception.targets import RENAMED, dotted
from lightrainer.lightning_modules.common.metric_directions import MAXIMIZED, MINIMIZED
from lightrainer.tools.estimate.estimation import PRECISIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
END = "<!-- end of table -->"

USES_OF_EXTRAS = {
    "transformers": "models and tokenizers of transformers, adapters",
    "tensorboard": '`report_to="tensorboard"`',
    "loggers": "[experiment tracking](../user/experiment-tracking.md)",
    "comet": "Comet; separate, because it patches torch when it is installed",
    "plot": "pictures of losses, in reports and model cards",
    "memory": "`MemoryCallback`, `skip_memory_metrics=False`",
    "cli": "`LightningCLI`",
    "search": "[reports and dashboards of searches](../user/search.md#the-report)",
    "ray": '`hyperparameter_search(backend="ray")`; about 200 MB',
    "deepspeed": "`deepspeed=`; built with [your torch](../user/deepspeed.md#install)",
    "keras": "`TFTrainer` with Keras on torch",
    "tf": "`TFTrainer` with models that compute in TensorFlow; 1.3 GB",
    "liger": "`use_liger_kernel=True`; needs a GPU",
    "torchao": '`optim="adamw_torch_8bit"` and similar ones',
    "bitsandbytes": '`optim="adamw_bnb_8bit"` and similar ones',
    "galore": '`optim="galore_adamw"` and similar ones; installs transformers too',
    "apollo": '`optim="apollo_adamw"` and similar ones; installs transformers too',
    "lomo": '`optim="lomo"`, `"adalomo"`; installs transformers too',
    "grokadamw": '`optim="grokadamw"`',
    "schedulefree": '`optim="schedule_free_adamw"` and similar ones',
    "stable_adamw": '`optim="stable_adamw"`',
    "all": "trying things out",
}
ARGUMENTS_OF_PRECISIONS = {
    "fp32": "neither",
    "bf16-mixed": "`bf16=True`",
    "fp16": "`fp16=True`",
    "bf16-true": "a model loaded in bfloat16",
}


def launchers() -> str:
    """Return the environment variables of launchers, in their order of precedence."""
    rows: list[Sequence[str]] = []
    for name, variables in {"torchrun": TORCHRUN, **LAUNCHERS}.items():
        numbers = (variables.size, variables.rank, variables.local_rank, variables.local_size)
        required = set(variables.needed) - set(numbers)
        rows.append((name, *map(code, numbers), codes(sorted(required))))
    head = ("launcher", "processes", "rank", "local rank", "local processes", "also required")
    return table(head, rows)


def extras() -> str:
    """Return the extras of the package: what they install, and what they are for."""
    assert USES_OF_EXTRAS.keys() == PROJECT["optional-dependencies"].keys()
    rows = [(code(name), installed_by(name), use) for name, use in USES_OF_EXTRAS.items()]
    return table(("extra", "installs", "used for"), rows)


def versions() -> str:
    """Return the supported versions of Python and of the main packages."""
    minors = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    numbers = "[the installed version](../user/migrate.md#which-version-is-followed)"
    rows = [
        ("Python", f"{minors[0]} to {minors[-1]}"),
        ("torch", bounds("torch", PROJECT["dependencies"])),
        ("Lightning", bounds("lightning", PROJECT["dependencies"])),
        (
            "transformers, if installed",
            f"{bounds('transformers', PROJECT['optional-dependencies']['transformers'])}; "
            f"numbers follow {numbers}",
        ),
    ]
    return table(("package", "supported versions"), rows)


def trackers() -> str:
    """Return the trackers of `report_to`: their callbacks, and the packages of their clients."""
    rows: list[Sequence[str]] = []
    for name, tracker in TRACKERS.items():
        signature = inspect.signature(getattr(lightrainer.callbacks, tracker.class_name))
        parameters = ", ".join(
            str(parameter.replace(annotation=inspect.Parameter.empty))
            for parameter in signature.parameters.values()
        )
        callback = f"{tracker.class_name}({parameters})" if parameters else tracker.class_name
        rows.append((code(name), code(callback), code(f"pip install {tracker.packages}")))
    return table(("name", "callback", "client"), rows)


def unsupported_members() -> str:
    """Return the members that `trainer.accelerator` refuses, those of one reason in one row."""
    return table(("members", "reason and alternative"), grouped(REFUSED_MEMBERS))


def refused_callbacks() -> str:
    """Return the callbacks of Lightning that are refused."""
    return table(("callback", "reason and alternative"), grouped(REFUSED_CALLBACKS))


def refused_keys() -> str:
    """Return the keys of DeepSpeed that are refused, those of one reason in one row."""
    reasons = {key: reason for key, (_, reason) in REFUSED_KEYS.items()}
    return table(("refused key", "reason"), grouped(reasons))


def refused_keys_of_fsdp() -> str:
    """Return the keys of `fsdp_config` that are refused, those of one alternative in one row."""
    return table(("refused key", "instead"), grouped(REFUSED_KEYS_OF_FSDP))


def refused_arguments() -> str:
    """Return the arguments that Keras models do not support."""
    return table(("refused argument", "instead"), grouped(REFUSED_ARGUMENTS))


def old_arguments() -> str:
    """Return the training arguments of transformers 4."""
    rows: list[Sequence[str]] = []
    for name, old in OLD_NAMES.items():
        refused = ""
        if isinstance(old, Removed) and old.refuses(object()):
            refused = "; a value that asks for more is refused"
            if not old.harmless:
                refused = "; a value other than the default is refused"
        rows.append((code(name), f"{old.replacement_text}{refused}"))
    return table(("training argument", "now"), rows)


def old_imports() -> str:
    """Return the imported names of transformers 4."""
    rows = [
        (code(f"{module}.{name}"), code(dotted(to)))
        for module, names in RENAMED.items()
        for name, to in names.items()
    ]
    return table(("imported name", "replacement"), rows)


def directions() -> str:
    """Return the words by which a sweep recognises the direction of a metric."""
    rows = [
        ("minimized", ", ".join(sorted(MINIMIZED.split()))),
        ("maximized", ", ".join(sorted(MAXIMIZED.split()))),
    ]
    return table(("direction", "words in the name"), rows)


def precisions() -> str:
    """Return the widths of weights and of numbers in the computation, for each precision."""
    rows = [
        (code(name), ARGUMENTS_OF_PRECISIONS[name], str(widths.weights), str(widths.compute))
        for name, widths in PRECISIONS.items()
    ]
    return table(("`--precision`", "arguments", "w", "c"), rows)


def bounds(package: str, requirements: Iterable[str]) -> str:
    """Return the allowed versions of a package, in words."""
    (lowest, below) = next(
        match.groups()
        for requirement in requirements
        if (match := re.match(rf"{package}>=([\d.]+),<([\d.]+)", requirement))
    )
    return f"{lowest} and later, below {below}"


def installed_by(extra: str) -> str:
    """Return the requirements of an extra, with their lowest versions."""
    requirements: list[str] = PROJECT["optional-dependencies"][extra]
    return codes(requirement.partition(",<")[0] for requirement in requirements)


def grouped(reasons: dict[str, str]) -> list[tuple[str, str]]:
    """Return a row for each reason, with the names that it applies to."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [(codes(names_of_reason), reason) for reason, names_of_reason in names.items()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---")


def code(text: str) -> str:
    """Return a text as code; nothing for an empty one."""
    return f"`{text}`" if text else ""


def codes(names: Iterable[str]) -> str:
    """Return several names as code."""
    return ", ".join(map(code, names))


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "start/install.md": {"extras": extras, "versions": versions},
    "user/accelerator.md": {"unsupported members": unsupported_members},
    "user/callbacks.md": {"refused callbacks": refused_callbacks},
    "user/deepspeed.md": {"refused keys": refused_keys},
    "user/distributed.md": {"launchers": launchers},
    "user/experiment-tracking.md": {"trackers": trackers},
    "user/keras.md": {"refused arguments": refused_arguments},
    "user/migrate.md": {"old arguments": old_arguments, "old imports": old_imports},
    "user/scaling.md": {"precisions": precisions},
    "user/sharding.md": {"refused keys of FSDP": refused_keys_of_fsdp},
    "user/search.md": {"directions": directions},
}
"""The tables of each page, by name."""


def page(name: str) -> str:
    """Return the text of a page with its tables as the code has them."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for title, make in TABLES[name].items():
        before, begin, rest = text.partition(f"<!-- table: {title} -->\n")
        _, end, after = rest.partition(END)
        assert end, f"{name} has no place for its table {title!r}"
        text = before + begin + make() + end + after
    return text


if __name__ == "__main__":
    for name in TABLES:
        (DOCS / name).write_text(page(name), encoding="utf-8")
