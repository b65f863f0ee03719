"""Run modules of transformers with our objects in place of the served names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from .targets import resolve

_RESOLVER = "__lightrainer__"
"""Name of the function, added to a module, that returns the object of a served name."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Shadow:
    """A module of transformers in which our objects replace the definitions of the served names.

    Its source is executed with our object instead of each definition of a served name. So the rest
    of the module uses our classes, and there are never two classes of the same name.

    Args:
        spec: the spec of the module in transformers; None if this version does not have it.
        served: the names that are served, each with its target.
    """

    def __init__(self, spec: ModuleSpec | None, served: Mapping[str, str]) -> None:
        self._spec = spec
        self._served = served
        self._module: ModuleType | None = None

    def get(self, name: str) -> Any:
        """Return the value of a name in the module.

        Raises:
            AttributeError: the module has no such name.
        """
        if self._spec is None:
            raise AttributeError(
                "The installed transformers does not have this module, and lightrainer has no "
                f"{name!r} for it."
            )
        return getattr(self._load(self._spec), name)

    def names(self) -> list[str]:
        """Return the public names of the module."""
        if self._spec is None:
            return []
        return [name for name in dir(self._load(self._spec)) if not name.startswith("_")]

    def _load(self, spec: ModuleSpec) -> ModuleType:
        """Run the module once, and return it."""
        # An access while the module runs sees the names defined so far, as in a circular import.
        if self._module is not None:
            return self._module

        module = ModuleType(spec.name)
        module.__dict__.update(
            __file__=spec.origin,
            __package__=spec.parent,
            __spec__=spec,
            __loader__=spec.loader,
        )
        module.__dict__[_RESOLVER] = self._resolve
        self._module = module
        try:
            exec(compile_without(spec, self._served), module.__dict__)
        except BaseException as error:
            self._module = None
            # An AttributeError would suggest that only the requested name is missing.
            if isinstance(error, AttributeError):
                raise ImportError(
                    f"{spec.name} of transformers cannot be loaded: {error}"
                ) from error
            raise
        return module

    def _resolve(self, name: str) -> object:
        return resolve(self._served[name])


def compile_without(spec: ModuleSpec, served: Mapping[str, str]) -> CodeType:
    """Compile a module with our objects for some of its definitions; line numbers do not change.

    Args:
        spec: the spec of the module.
        served: the names whose definitions are replaced.

    Raises:
        ImportError: the source of the module is not installed.
    """
    source = source_of(spec)
    if source is None:
        raise ImportError(
            f"{spec.name} is installed without its source, which lightrainer needs for the names "
            "that it does not serve. Install transformers from a regular wheel."
        )
    tree = _DefinitionReplacer(served).visit(ast.parse(source))
    return compile(ast.fix_missing_locations(tree), str(spec.origin), "exec")


def source_of(spec: ModuleSpec) -> str | None:
    """Return the source of a module; None if it is not available."""
    get_source = getattr(spec.loader, "get_source", None)
    return None if get_source is None else get_source(spec.name)


def _defined_names(node: Definition) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return {node.name}
    return {target.id for target in targets if isinstance(target, ast.Name)}


class _DefinitionReplacer(ast.NodeTransformer):
    """Replaces top-level definitions of a module by `X = __lightrainer__("X")`."""

    def __init__(self, served: Mapping[str, str]) -> None:
        self._served = served

    def _replace(self, node: Definition) -> ast.stmt:
        """Return the replacement of a definition, or the node itself if its name is not served."""
        # `generic_visit` is not called, because names inside functions and classes are not served.
        names = _defined_names(node) & set(self._served)
        # An assignment such as `A = B = ...` of several served names is not replaced.
        if len(names) != 1:
            return node
        (name,) = names
        call = ast.Call(ast.Name(_RESOLVER, ast.Load()), [ast.Constant(name)], [])
        assignment = ast.Assign([ast.Name(name, ast.Store())], call)
        return ast.copy_location(assignment, node)

    # `ast.NodeVisitor` looks up its methods by these names.
    visit_FunctionDef = _replace  # noqa: N815 - name set by `ast.NodeVisitor`
    visit_AsyncFunctionDef = _replace  # noqa: N815 - name set by `ast.NodeVisitor`
    visit_ClassDef = _replace  # noqa: N815 - name set by `ast.NodeVisitor`
    visit_Assign = _replace  # noqa: N815 - name set by `ast.NodeVisitor`
    visit_AnnAssign = _replace  # noqa: N815 - name set by `ast.NodeVisitor`
