"""Imports between folders, read from the source of every module, also those in functions and for
types only.
"""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from lightrainer.facade.strategies import Strategy

ROOT = Path(__file__).parents[2]
FOLDERS = ["package", "facade", "lightning_modules", "callbacks"]
MODULES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py*")
    if path.suffix in (".py", ".pyi")
)
SOURCES = [path for path in MODULES if path.suffix == ".py"]

MAY_IMPORT = {
    "package": {"package", "facade", "lightning_modules", "callbacks"},
    "facade": {"facade", "lightning_modules", "callbacks"},
    "lightning_modules": {"lightning_modules"},
    "callbacks": {"callbacks"},
}

# What both lower folders need: the standard library, and what compares versions, is all that these
# import.
COMMON = {
    ("lightrainer", "lightning_modules", "common", "suggestions", "did_you_mean"),
    ("lightrainer", "lightning_modules", "common", "flushing", "flush"),
    ("lightrainer", "lightning_modules", "common", "process_identity", "process_token"),
    ("lightrainer", "lightning_modules", "common", "loss_scale", "unscale_gradients"),
    ("lightrainer", "lightning_modules", "common", "version_behavior", "version_behavior"),
    ("lightrainer", "lightning_modules", "common", "lengths", "length_or_none"),
    ("lightrainer", "lightning_modules", "common", "metric_directions", "known_direction"),
    ("lightrainer", "lightning_modules", "common", "stop_iteration", "stop_iteration_guard"),
    *(
        ("lightrainer", "lightning_modules", "common", "file_names", name)
        for name in ("INCOMPLETE_NAME", "PREFIX_CHECKPOINT_DIR")
    ),
    *(
        ("lightrainer", "lightning_modules", "common", "libraries", name)
        for name in ("is_installed", "is_instance", "loaded")
    ),
    ("lightrainer", "lightning_modules", "common", "versions", "installed"),
    ("lightrainer", "lightning_modules", "common", "versions", "is_older"),
}

# The rooms of a folder, from the lowest up; each may import those of its line and of the lines
# before.
ROOMS = {
    "facade": (
        "distributed < arguments < strategies < accelerator < parser evaluation hub checkpointing "
        "< search < trainer < compat keras"
    ),
    "lightning_modules": (
        "common internals < data distributed optim models < evaluation checkpoints < training "
        "tasks < search tokenization keras"
    ),
}


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _trees_are_forgotten():
    """They are a million objects."""
    yield
    tree.cache_clear()


def where(wrong):
    """The modules for which something is wrong, and what, by name."""
    return {str(path.relative_to(ROOT)): faults for path in MODULES if (faults := wrong(path))}


def location(path):
    """The full name of a module as a list, such as `facade`, `trainer`, `steps`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def resolved(path, node):
    """Return the imports of a statement, as folders and names below `lightrainer`, or the
    absolute name.
    """
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    module = tuple(node.module.split(".")) if node.module else ()
    if not node.level:
        return [(*module, alias.name) for alias in node.names]
    # The package folder is `lightrainer` itself, the others lie below it.
    place = location(path)
    inside = place[1:] if place[0] == "package" else place
    is_package = path.stem == "__init__"
    parent = inside if is_package else inside[:-1]
    climbed = node.level - 1
    assert climbed <= len(parent), f"{path}: an import beyond the top"
    base = ("lightrainer", *parent[: len(parent) - climbed])
    return [(*base, *module, alias.name) for alias in node.names]


def for_type_checkers(path):
    """The statements of a module below `if TYPE_CHECKING:`."""
    blocks = [
        node
        for node in tree(path).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


TYPES = (
    "Trainer",
    "TrainerModule",
    "TrainingRun",
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
)
"""Classes that all rooms of the facade, and the callbacks, may name for type checkers."""


def names_the_trainer(path, node):
    """Return whether a statement of the facade or the callbacks imports the Trainer or its
    arguments, as types.
    """
    if path.relative_to(ROOT).parts[0] not in ("facade", "callbacks"):
        return False
    imported = resolved(path, node)
    trainer_names = {("lightrainer", "facade", name) for name in TYPES}
    return node in for_type_checkers(path) and set(imported) <= trainer_names


@functools.cache
def imports(path):
    """Everything that a module imports, also by `import_module` and `__import__` with a text.

    All rooms of the facade, and the callbacks, may name the Trainer and its arguments for type
    checkers.
    """
    imported = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and names_the_trainer(path, node):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported += resolved(path, node)
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__", "find_spec") and isinstance(
                node.args[0].value, str
            ):
                imported.append(tuple(node.args[0].value.split(".")))
    return imported


def part_of(name):
    """The folder that an import from our own package reaches into; None for other libraries."""
    if name[0] != "lightrainer":
        return None
    return name[1] if len(name) > 1 and name[1] in FOLDERS[1:] else "package"


def test_imports_go_down_only():
    def upwards(path):
        folder = path.relative_to(ROOT).parts[0]
        reached = {part_of(name) for name in imports(path) if name not in COMMON}
        return reached - {None} - MAY_IMPORT[folder]

    assert where(upwards) == {}


@functools.cache
def imported_modules(path):
    """Those of our own modules that a module imports; the package of a name where the name is no
    module.
    """
    places = {
        (
            "lightrainer",
            *(parts[1:] if (parts := location(source))[0] == "package" else parts),
        ): source
        for source in SOURCES
    }
    lengths = ((name, range(len(name), 0, -1)) for name in imports(path))
    modules = {
        next((places[name[:n]] for n in sizes if name[:n] in places), None)
        for name, sizes in lengths
    }
    return modules - {None, path}


def circles(graph):
    """The nodes on a cycle, or on a path between two cycles."""
    left = set(graph)
    while True:
        imported = {target for node in left for target in graph[node] & left}
        inside = {node for node in left & imported if graph[node] & left}
        if inside == left:
            return left
        left = inside


def test_layers_have_no_import_circle():
    """Imports for type checkers and inside functions count too: a reader of one module need not
    know the other.
    """
    circular = circles({path: imported_modules(path) for path in SOURCES})
    assert [str(path.relative_to(ROOT)) for path in circular] == []


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_downwards_only(folder):
    level = {
        room: number
        for number, rooms in enumerate(ROOMS[folder].split(" < "))
        for room in rooms.split()
    }
    assert {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")} == set(level)
    upwards = {
        (f"{folder}/{room}", other)
        for path in SOURCES
        for target in imported_modules(path)
        if (room := room_of(path, folder))
        and (other := room_of(target, folder))
        and level[room] < level[other]
    }
    assert upwards == set()


def room_of(path, folder):
    """The room of a module that is in one of the folder's; None elsewhere."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == folder and len(parts) > 2 else None


def test_layers_shared_modules_import_only_the_standard_library():
    for name in COMMON:
        packages = {parts[0] for parts in imports(ROOT.joinpath(*name[1:-1]).with_suffix(".py"))}
        assert packages <= {*sys.stdlib_module_names, "packaging"}


def test_layers_do_not_import_transformers():
    """Neither it nor its helper; they are looked for in `sys.modules` where other code has
    loaded them.
    """
    assert (
        where(lambda path: {name[0] for name in imports(path)} & {"transformers", "accelerate"})
        == {}
    )


def test_layers_only_strategies_ask_for_the_strategy():
    """Others import none of their classes, and show their names in messages alone."""
    classes = {kind.__name__ for kind in Strategy.__subclasses__()}

    def asks(path):
        nodes = list(ast.walk(tree(path)))
        shown = {
            inner for node in nodes if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)
        }
        attributes = [
            node for node in nodes if isinstance(node, ast.Attribute) and node not in shown
        ]
        named = [
            node.lineno for node in attributes if re.search(r"\bstrategy\.name$", ast.unparse(node))
        ]
        return named + [
            name for name in imports(path) if name[0] == "lightrainer" and name[-1] in classes
        ]

    uses_by_place = where(asks)
    # `choose`, so that the search is known to find something
    assert "facade/strategies/__init__.py" in uses_by_place
    assert {
        place: uses
        for place, uses in uses_by_place.items()
        if not place.startswith("facade/strategies/")
    } == {}
