"""Read JSON files of users, with errors that name the file and the place in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_object(path: str | os.PathLike[str], what: str = "", keys: str = "names and values") -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Args:
        path: the file.
        what: purpose of the file, such as the name of an argument; the message begins with it.
        keys: what such a file consists of, for the message.

    Raises:
        ValueError: it is not JSON, or something else than an object.
        OSError: it cannot be read.
    """
    content = read_json(path, what)
    if isinstance(content, dict):
        return content
    raise ValueError(
        f"{_named(path, what)}: the file holds a {type(content).__name__}, expected is an object, {{...}}, of {keys}."
    )


def read_json(path: str | os.PathLike[str], what: str = "") -> Any:
    """Return the contents of a JSON file.

    Args:
        path: the file.
        what: see `read_object`.

    Raises:
        ValueError: it is not JSON; a `JSONDecodeError` where a place can be told.
        OSError: it cannot be read.
    """
    # The error is raised outside of the handler: the frames of the parser hold the text, which may contain a token.
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        failed: ValueError = json.JSONDecodeError(_not_json(path, what, error.msg), error.doc, error.pos)
    except UnicodeDecodeError as error:
        failed = ValueError(_not_json(path, what, f"byte {error.start} is no UTF-8"))
    except RecursionError:
        failed = ValueError(_not_json(path, what, "it is nested too deeply"))
    raise failed


def _not_json(path: str | os.PathLike[str], what: str, why: str) -> str:
    return f"{_named(path, what)}: the file is not JSON ({why})"


def _named(path: str | os.PathLike[str], what: str) -> str:
    return f"{what}={os.fspath(path)!r}" if what else os.fspath(path)
