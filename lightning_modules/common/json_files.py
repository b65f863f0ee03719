"""Read JSON files of users, with errors that name the file and the position in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_object(
    path: str | os.PathLike[str], purpose: str = "", keys: str = "names and values"
) -> dict[str, Any]:
    """Read the JSON object in a file.

    Args:
        path: the file to read.
        purpose: what the file is for, such as the name of an argument. Starts the error message.
        keys: description of the expected entries, for the error message.

    Raises:
        ValueError: the file is not JSON or not an object. It is a `JSONDecodeError` if the position
            of the error is known.
        OSError: the file cannot be read.
    """
    source = os.fspath(path)
    if purpose:
        source = f"{purpose}={source!r}"
    not_json = f"{source}: the file is not JSON"

    # Raise outside of the handler, because the parser's frames contain the text, which may include
    # a token.
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
