"""Read JSON files of users, with errors that name the file and the place in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_object(
    path: str | os.PathLike[str], purpose: str = "", keys: str = "names and values"
) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Args:
        path: the file to read.
        purpose: the purpose of the file, such as the name of an argument; the message begins with
            it.
        keys: description of the entries of such a file, for the message.

    Raises:
        ValueError: it is not JSON, or not an object; a `JSONDecodeError` where the position of the
            error is known.
        OSError: it cannot be read.
    """
    source = os.fspath(path)
    if purpose:
        source = f"{purpose}={source!r}"
    not_json = f"{source}: the file is not JSON"

    # The error is raised outside of the handler: the frames of the parser hold the text, which may
    # contain a token.
    content: Any = None
    failed: ValueError | None = None
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        failed = json.JSONDecodeError(f"{not_json} ({error.msg})", error.doc, error.pos)
    except UnicodeDecodeError as error:
        failed = ValueError(f"{not_json} (byte {error.start} is not UTF-8)")
    except RecursionError:
        failed = ValueError(f"{not_json} (it is nested too deeply)")
    if failed is not None:
        raise failed

    if isinstance(content, dict):
        return content
    raise ValueError(
        f"{source}: the file holds a {type(content).__name__}, expected an object, {{...}}, of "
        f"{keys}."
    )
