"""The site's navigation has every page, and its reference every public name; `make docs` checks
the links.
"""

import importlib.util
import re
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType
from xml.sax.saxutils import unescape

import nbformat
import pytest
import yaml

import lightrainer

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    """Return a script of docs/scripts, imported."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_navigation_lists_every_page():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | {"index.md"}


def test_site_reference_lists_every_public_name():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"^::: lightrainer\.(\w+)$", pages, re.MULTILINE)) == sorted(
        lightrainer.__all__
    )


def test_site_command_line_page_is_up_to_date():
    tool = script("command_line_page")
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), (
        "run python docs/scripts/command_line_page.py"
    )


@pytest.mark.parametrize("name", script("guide_tables").TABLES)
def test_site_tables_of_guides_are_up_to_date(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == script("guide_tables").page(name), "run python docs/scripts/guide_tables.py"


def test_site_tables_without_a_generator_are_reported():
    """A place for a table that the script does not know would stay as it is."""
    tables = script("guide_tables").TABLES
    marked = {
        (str(page.relative_to(DOCS)), title)
        for page in DOCS.rglob("*.md")
        for title in re.findall("<!-- table: (.+) -->", page.read_text(encoding="utf-8"))
    }
    assert marked == {(page, title) for page in tables for title in tables[page]}


def test_pictures_are_small_and_shown():
    pictures = list((DOCS / "images").iterdir())
    text = "".join(
        page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
    )
    assert len(pictures) >= 4
    assert sum(picture.stat().st_size for picture in pictures) < 400_000
    assert [picture.name for picture in pictures if picture.name not in text] == []


@pytest.mark.parametrize("name", script("benchmark_plots").plots())
def test_site_plots_show_the_committed_numbers(name):
    tool = script("benchmark_plots")
    picture = (DOCS / "images" / name).read_text(encoding="utf-8")
    shown = [unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", picture)]
    expected = tool.texts(tool.plots()[name])
    missing = Counter(expected) - Counter(shown)
    assert len(expected) > 8
    assert not missing, "run python docs/scripts/benchmark_plots.py"


def test_site_plot_without_a_row_is_reported():
    """Negative control."""
    with pytest.raises(LookupError, match="no row that begins with 'no such row'"):
        script("benchmark_plots").table_row("no such row")


@pytest.mark.parametrize("name", ["CITATION.cff", "SECURITY.md", "mkdocs.yml"])
def test_files_have_the_address_of_the_project(name):
    tool = script("address")
    text = (ROOT / name).read_text(encoding="utf-8")
    assert tool.with_address(name) == text, "run python docs/scripts/address.py"
    assert tool.address() in text


def test_versions_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == str(citation["version"]) == lightrainer.__version__

    minors = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={minors[0]}"


@pytest.mark.parametrize("name", script("notebooks").TUTORIALS)
def test_notebook_is_that_of_its_page(name):
    """Its code runs with the page, in `test_blocks`."""
    text = (DOCS / "start" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == script("notebooks").notebook(name), "run python docs/scripts/notebooks.py"
    nbformat.validate(nbformat.reads(text, as_version=4))
