"""Name the changes between two versions of transformers that `docs/develop/followed.md` has no row
for.

`make follow FROM=5.3.0 TO=5.24.0` compares the functions, methods, fields and constants of the
modules that lightrainer serves: signatures and syntax trees, without docstrings, comments and help
texts. Rows are read from the sections "From X to Y" that overlap the range; where a section ends in
between, what is before and after is compared apart.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.version import Version

from lightrainer.interception.names import SERVED
from lightrainer.interception.stand_in.names import STAND_IN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "develop" / "followed.md"
REBUILT = (
    "data.data_collator",
    "integrations.fsdp",
    "integrations.neftune",
    "modelcard",
    "utils.notebook",
)
"""Modules that are not served where transformers is installed, but whose behaviour a training
here has too.
"""


def nameless(older: Any, newer: Any, first: str, last: str) -> list[str]:
    """Return complaints: changes without a row or a section, rows that stand for no change, empty
    cells.

    Args:
        older: the folder `transformers` of one version; a `Path` or a `zipfile.Path`.
        newer: that of another.
        first: the number of the older version.
        last: the number of the newer one.
    """
    page = PAGE.read_text(encoding="utf-8")
    changed, rows, inside = set(changes(older, newer)), set(), set()
    for begin, end, text in sections(page):
        if begin < Version(last) and Version(first) < end:
            rows.update(named(text))
            inside.update(named(text) if Version(first) <= begin and end <= Version(last) else ())
    listed = {change for change in changed for row in rows if fnmatchcase(change, row)}
    stale = {row for row in inside if not any(fnmatchcase(change, row) for change in changed)}
    newest = max(end for _, end, _ in sections(page))
    return [
        *[f"no section leads to {last}: make follow FROM={newest} TO={last}"][
            : newest < Version(last)
        ],
        *(
            f"{change} changed from {first} to {last} and has no row"
            for change in sorted(changed - listed)
        ),
        *(f"{row} has a row and did not change" for row in sorted(stale)),
        *(f"the row {row} does not fill the columns of its table" for row in unexplained(page)),
    ]


def changes(older: Any, newer: Any) -> Iterator[str]:
    """Yield what differs, as `trainer.Trainer.train`."""
    for module in sorted({*SERVED, *STAND_IN, *REBUILT} - {""}):
        before, after = pieces(older, module), pieces(newer, module)
        whole = module in SERVED or module in REBUILT
        for name in {*before, *after}:
            ours = whole or name.partition(".")[0] in STAND_IN[module]
            if ours and before.get(name) != after.get(name):
                yield f"{module}.{name}"


def pieces(library: Any, module: str) -> dict[str, str]:
    """Return the syntax trees of a module's functions, methods, fields and constants by name;
    none of a missing one.
    """
    file = library / (module.replace(".", "/") + ".py")
    texts: dict[str, str] = {}
    for name, node in _named(
        ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    ):
        texts[name] = texts.get(name, "") + ast.dump(_WithoutWords().visit(node))
    return texts


def _named(body: Iterable[ast.stmt], outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield outer + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield outer + node.name, ast.Tuple([*node.decorator_list, *node.bases])
            yield from _named(node.body, f"{outer}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield outer + ast.unparse(target), node
        elif isinstance(node, (ast.If, ast.Try)):
            handled = [line for handler in getattr(node, "handlers", ()) for line in handler.body]
            yield from _named([*node.body, *handled, *node.orelse], outer)


class _WithoutWords(ast.NodeTransformer):
    """Leaves out docstrings, and the help texts of fields."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        items = [
            (k, v)
            for k, v in zip(node.keys, node.values, strict=True)
            if not (isinstance(k, ast.Constant) and k.value == "help")
        ]
        return self.generic_visit(ast.Dict([k for k, _ in items], [v for _, v in items]))


def named(section: str) -> Iterator[str]:
    """Yield the names, which may have wildcards, in the first column of a section's tables."""
    for cell in re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", cell)


def unexplained(page: str) -> Iterator[str]:
    """Yield rows that lack a cell: what was done, its test, or why it was not needed or is open."""
    for table in re.findall(r"^\| changed \| .*\n(?:\|.*\n?)+", page, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split(" |")] for line in table.splitlines()
        )
        yield from (row[0] for row in rows if len(row) != len(head) or not all(row))


def sections(page: str) -> Iterator[tuple[Version, Version, str]]:
    """Yield the two versions and the text of each section."""
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        if heading := re.match(r"From ([\d.]+) to ([\d.]+)\n", part):
            yield Version(heading[1]), Version(heading[2]), part


def _downloaded(version: str, folder: str) -> zipfile.Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
    ]
    subprocess.run([*pip, "--dest", folder, f"transformers=={version}"], check=True)
    return zipfile.Path(f"{folder}/transformers-{version}-py3-none-any.whl", "transformers/")


if __name__ == "__main__":
    first, last = sys.argv[1:]
    ends = sorted(end for _, end, _ in sections(PAGE.read_text(encoding="utf-8")))
    versions = [first, *(str(end) for end in ends if Version(first) < end < Version(last)), last]
    with tempfile.TemporaryDirectory() as folder:
        wheels = [_downloaded(version, folder) for version in versions]
        pairs = zip(wheels, wheels[1:], versions, versions[1:], strict=False)
        said = [line for pair in pairs for line in nameless(*pair)]
    print(*said, f"{len(said)} to add to, or to take out of, {PAGE}", sep="\n")
    sys.exit(bool(said))
