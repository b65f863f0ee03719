"""Private names of Lightning: used in one place, each in a table with the test that fails when
it changes.
"""

import ast
import functools
import re
from pathlib import Path

import lightning

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for name in ("package", "facade", "lightning_modules", "callbacks")
    for path in (ROOT / name).rglob("*.py")
)
PLACE = ROOT / "lightning_modules" / "internals"
TESTS = ROOT / "tests" / "lightning_modules" / "internals"
TABLE = ROOT / "docs" / "develop" / "lightning.md"
ROW = re.compile(r"\| `(_\w+)` \| (.+) \| (\d\.\d) \| `(\w+\.py)::(\w+)` \|")
PRIVATE = re.compile(r"(?<!\w)_[a-zA-Z]\w*")
CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:\n((?:(?:[ \t].*)?\n)*)", re.M)
# Lightning gives them too, but those used here are torch's.
TORCHS = {"_load_from_state_dict", "_metadata", "_timeout"}

# What Lightning's sources give a private name to: functions and classes, attributes of `self`,
# variables of a module.
GIVEN = re.compile(
    r"\b(?:def|class) "
    r"(_[a-zA-Z]\w*)|\bself\.(_[a-zA-Z]\w*)(?=\s*:|[^=\n]*\s=\s)|^(_[a-zA-Z]\w*)(?=\s*[:=])",
    re.M,
)


# Also what is given in the body of a class or function, or by an import.
OURS = re.compile(GIVEN.pattern.replace("|^", r"|^\s*").replace("def|class", "def|class|as"), re.M)


@functools.cache
def texts_of_lightning():
    home = Path(lightning.__file__).parent
    return [
        path.read_text(encoding="utf-8")
        for part in ("pytorch", "fabric")
        for path in (home / part).rglob("*.py")
    ]


@functools.cache
def given_by_lightning():
    return {
        name
        for text in texts_of_lightning()
        for groups in GIVEN.findall(text)
        for name in groups
        if name
    }


def used(path, wanted):
    """Return the names in a module: attributes, imports, methods and whole texts, by line."""
    text = path.read_text(encoding="utf-8")
    if not wanted.intersection(PRIVATE.findall(text)):
        return {}
    nodes = list(ast.walk(ast.parse(text)))
    lines, parts = (
        {},
        {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values},
    )
    for node in nodes:
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [
                *(alias.name for alias in node.names),
                *(node.module or "").split(".") * (node.level == 0),
            ]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = [node.name]
        else:
            is_text = (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in parts
            )
            names = [node.value] if is_text else []
        lines |= {name: node.lineno for name in names if name in wanted}
    return lines


@functools.cache
def given_by_us():
    """The same for our modules, except those that deal with Lightning's."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCES if path.parent != PLACE)
    return {name for text in texts for groups in OURS.findall(text) for name in groups if name}


@functools.cache
def rows():
    return {name: row for name, *row in ROW.findall(TABLE.read_text(encoding="utf-8"))}


def classes_in(texts):
    """Name -> names of its bases, private names that it gives or uses on itself, of every class
    in these sources.
    """
    itself = re.compile(r"\b(?:self|super\(\))\.(_[a-zA-Z]\w*)|\bdef (_[a-zA-Z]\w*)")
    return {
        name: (
            re.findall(r"\w+", bases),
            {attribute for groups in itself.findall(body) for attribute in groups if attribute},
        )
        for text in texts
        for name, bases, body in CLASS.findall(text)
    }


def private_names_of(name, classes):
    """Those of a class and of all that it is made of."""
    bases, names = classes.get(name, ((), set()))
    return names.union(*(private_names_of(base, classes) for base in bases if base != name))


def is_of(name, classes, roots):
    """Return the roots that a class inherits."""
    inherited = {base for base in classes[name][0] if base not in classes and base in roots}
    return inherited.union(
        *(
            is_of(base, classes, roots)
            for base in classes[name][0]
            if base in classes and base != name
        )
    )


def test_private_names_table_lists_what_is_used():
    assert {
        name for path in PLACE.glob("*.py") for name in used(path, given_by_lightning() - TORCHS)
    } == set(rows())


def test_private_names_are_used_nowhere_else():
    """Neither those of the table, nor others that Lightning gives and we do not. So there is one
    place to check.
    """
    theirs = set(rows()) | given_by_lightning() - given_by_us() - TORCHS
    elsewhere = [path for path in SOURCES if path.parent != PLACE]
    assert len(theirs) > 500
    assert {
        str(path.relative_to(ROOT)): uses for path in elsewhere if (uses := used(path, theirs))
    } == {}


def test_private_names_of_lightning_are_not_taken_by_subclasses():
    """Not by accident either, such as by an attribute that a class of Lightning has too."""
    theirs, ours = (
        classes_in(texts_of_lightning()),
        classes_in(path.read_text(encoding="utf-8") for path in SOURCES),
    )
    taken = set()
    for name, (_, names) in ours.items():
        inherited = set().union(
            *(private_names_of(root, theirs) for root in is_of(name, ours, set(theirs)))
        )
        taken |= {f"{name}.{private}" for private in names & inherited}
    engine_names = ("_evaluation_step", "_has_run", "_seen_batches_per_dataloader")
    assert taken == {f"EvaluationLoop.{private}" for private in engine_names}, (
        "those of the engine are in the table"
    )


def test_private_names_table_names_existing_tests():
    """That each fails when its name is another one is shown by `make test-private-names`."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in TESTS.glob("test_*.py")}
    missing = [
        test for _, _, file, test in rows().values() if f"\ndef {test}(" not in texts.get(file, "")
    ]
    assert missing == []


OTHERS = ROOT / "docs" / "develop" / "private_names.md"
OTHER_ROW = re.compile(
    r"^\| (\w+) \| `(_\w+)` \| ([^|]+) \| [^|]+ \| `([\w/]+\.py)::(\w+)` \|$", re.M
)
OF_MODELS = re.compile(r"^\| `(_\w+)` \| [^|]+ \| ([^|]+) \|$", re.M)
# The documented functions of Python that are called so, the documented module of type checkers, the
# folders of torch's own modules, and a mark of ours.
PUBLIC = {
    "_asdict",
    "_exit",
    "_getframe",
    "_current_frames",
    "_typeshed",
    "_C",
    "_autograd",
    "_averaged",
}
# Without the names that an import takes from elsewhere.
OWN = re.compile(
    OURS.pattern.replace("def|class|as", "def|class").replace(")|^\\s*(", ")|^ *("), re.M
)
ASKING = ("getattr", "hasattr", "setattr", "delattr")


def foreign(path):
    """Return the private names that a module reads, sets or imports, and that are defined
    nowhere in this package.
    """
    mentioned = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            mentioned.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            mentioned.update(alias.name for alias in node.names)
            mentioned.update((node.module or "").split("."))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ASKING:
            mentioned.update(
                constant.value for constant in node.args[1:2] if isinstance(constant, ast.Constant)
            )
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            mentioned.update(
                constant.value for constant in [node.slice] if isinstance(constant, ast.Constant)
            )
    private = {name for name in mentioned if isinstance(name, str) and PRIVATE.fullmatch(name)}
    return private - defined_anywhere() - set(rows()) - PUBLIC


@functools.cache
def defined_anywhere():
    texts = (path.read_text(encoding="utf-8") for path in SOURCES)
    return {name for text in texts for groups in OWN.findall(text) for name in groups if name}


def test_private_names_of_other_libraries_are_in_the_table():
    text = OTHERS.read_text(encoding="utf-8")
    table_rows = [
        (name, where) for _, name, where, _, _ in OTHER_ROW.findall(text)
    ] + OF_MODELS.findall(text)
    expected = {
        (name, path) for name, where in table_rows for path in re.findall(r"`([\w/]+\.py)`", where)
    }
    actual = {(name, str(path.relative_to(ROOT))) for path in SOURCES for name in foreign(path)}
    assert actual == expected


def test_private_names_of_other_libraries_name_existing_tests():
    rows_of_others = OTHER_ROW.findall(OTHERS.read_text(encoding="utf-8"))
    assert len(rows_of_others) > 20
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for *_, file, _ in rows_of_others}
    assert [test for *_, file, test in rows_of_others if f"\ndef {test}(" not in texts[file]] == []
