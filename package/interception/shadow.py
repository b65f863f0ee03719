"""Load the reference's own module with our names in place of the definitions there."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from .targets import resolve

_GIVE = "__ours__"


class Shadow:
    """A module of the reference without its own Trainer names.

    Its source is run as it is, but where a name of the table is defined, ours is put in its place.
    So what remains builds on our classes, and no second class of the same name exists.

    Args:
        spec: Where the reference's module is; None where this version of it has none.
        ours: The names that are served, each with its target.
    """

    def __init__(self, spec: ModuleSpec | None, ours: Mapping[str, str]) -> None:
        self._spec = spec
        self._ours = ours
        self._module: ModuleType | None = None

    def get(self, name: str) -> Any:
        """Return a name of the reference's module.

        Raises:
            AttributeError: There is nothing of that name.
        """
        if self._spec is None:
            raise AttributeError(
                f"transformers has no such module here, and lightrainer has no {name!r} for it"
            )
        return getattr(self._loaded(self._spec), name)

    def names(self) -> list[str]:
        """Return its public names."""
        return (
            []
            if self._spec is None
            else [name for name in dir(self._loaded(self._spec)) if name[0] != "_"]
        )

    def _loaded(self, spec: ModuleSpec) -> ModuleType:
        # As in any circular import, an access while it runs sees the names defined so far.
        if self._module is None:
            self._module = module = ModuleType(spec.name)
            module.__dict__.update(
                __file__=spec.origin,
                __package__=spec.parent,
                __spec__=spec,
                __loader__=spec.loader,
            )
            module.__dict__[_GIVE] = lambda name: resolve(self._ours[name])
            try:
                exec(code_without(spec, self._ours), module.__dict__)
            except BaseException as error:
                self._module = None
                # which would read as if only this name were missing
                if isinstance(error, AttributeError):
                    raise ImportError(
                        f"{spec.name} of transformers cannot be loaded: {error}"
                    ) from error
                raise
        return self._module


def code_without(spec: ModuleSpec, ours: Mapping[str, str]) -> CodeType:
    """Compile a module with the definitions of some names replaced; lines keep their numbers.

    Raises:
        ImportError: Its source is missing.
    """
    source = source_of(spec)
    if source is None:
        raise ImportError(
            f"{spec.name} is installed without its source, which is needed for names that are not "
            "ours."
        )
    tree = _Replace(ours).visit(ast.parse(source))
    return compile(ast.fix_missing_locations(tree), str(spec.origin), "exec")


def source_of(spec: ModuleSpec) -> str | None:
    """Return the source of a module; None without one."""
    read = getattr(spec.loader, "get_source", None)
    return None if read is None else read(spec.name)


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


class _Replace(ast.NodeTransformer):
    """Puts `X = __ours__("X")` in the place of definitions at the top level of a module."""

    def __init__(self, ours: Mapping[str, str]) -> None:
        self._ours = ours

    def _definition(self, node: Any) -> Any:
        names = _names(node) & set(self._ours)
        if len(names) != 1:
            return node  # functions and classes are left as they are, with all that is in them
        (name,) = names
        given = ast.Call(ast.Name(_GIVE, ast.Load()), [ast.Constant(name)], [])
        return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], given), node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition  # noqa: N815 - names of `ast`
    visit_Assign = visit_AnnAssign = _definition  # noqa: N815 - names of `ast`
