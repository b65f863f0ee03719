"""Plugin of pytest: rename a private name of a library while the library is imported,
RENAMED=library:name.
"""

import importlib.abc
import importlib.machinery
import os
import re
import sys

LIBRARY, _, NAME = os.environ["RENAMED"].partition(":")


class Renaming(importlib.machinery.SourceFileLoader):
    """Loads a module with the name replaced in its source."""

    def get_code(self, fullname):
        source = self.get_data(self.get_filename(fullname)).decode()
        if not re.search(rf"\b{NAME}\b", source):
            return super().get_code(fullname)
        return self.source_to_code(
            re.sub(rf"\b{NAME}\b", f"{NAME}_renamed", source).encode(), self.path
        )


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the library for `Renaming`."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != LIBRARY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Renaming(spec.loader.name, spec.loader.path)
        return spec


for module in [one for one in sys.modules if one.partition(".")[0] == LIBRARY]:
    del sys.modules[module]
sys.meta_path.insert(0, Finder())
