"""The description of the package on an index: the README, with links to the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
FILES = f"{REPOSITORY}/blob/main"
PICTURES = f"{REPOSITORY}/raw/main"

description = re.sub(r"(!\[[^\]]*\])\((?!https?:)", rf"\1({PICTURES}/", README)
# Headings of the README are on the first page of the repository.
description = re.sub(r"(?<!!)(\[[^\]]+\])\(#", rf"\1({REPOSITORY}#", description)
description = re.sub(r"(?<!!)(\[[^\]]+\])\((?!https?:)", rf"\1({FILES}/", description)

setup(
    long_description=description,
    long_description_content_type="text/markdown",
)
