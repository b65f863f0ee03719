"""Errors of the Hub: retry transient ones, explain the others, and redact tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ...lightning_modules.common.redaction import error_chain, replace_token, strip_token

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RETRY_PAUSES = (2.0, 8.0)
"""Seconds before the second and the third attempt, besides the retries of `huggingface_hub`."""

MAX_RETRY_SECONDS = 20.0
"""Seconds after the first failure during which another attempt may start.

`huggingface_hub` itself retries some requests, for 23 s in total, which cannot be configured.
"""

_TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
_TRANSPORT_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
"""Libraries whose errors mean that a connection failed."""
_REMEDIES = {
    401: (
        "The Hub did not accept the token. Pass a valid token as hub_token, or run `hf auth login`."
    ),
    403: (
        "The token has no permission for this. Use a token with the role `write`, and check the "
        "owner in hub_model_id."
    ),
    404: (
        "Repository or branch not found with this token. Check the spelling of hub_model_id and "
        "hub_revision."
    ),
    429: "Too many requests in a short time. Save less often, or try again later.",
}
"""Remedies by HTTP status."""
_MAX_LENGTH = 400
"""Maximum number of characters of an error in a log."""


def call_with_retries(call: Callable[[], Result], token: str | None = None) -> Result:
    """Call a function, and retry it after a transient error, such as a broken connection.

    Args:
        call: an idempotent function that sends a request to the Hub.
        token: the secret to redact in logs.

    Raises:
        Exception: the error of the last attempt, or an error that is not transient.
    """
    first_failure: float | None = None
    for pause in RETRY_PAUSES:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if first_failure is None:
                first_failure = now

            # The client may have retried before it raised, so much time may have passed already.
            is_too_late = now - first_failure > MAX_RETRY_SECONDS
            if is_too_late or not is_transient(error):
                raise
            logger.info(
                "Request to the Hub failed: %s. Retrying in %g s.", describe(error, token), pause
            )
            time.sleep(pause)

    # The last attempt. Its error is raised.
    return call()


def is_transient(error: BaseException) -> bool:
    """Return whether a later attempt may succeed."""
    status = http_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUSES
    return any(_is_transport_error(cause) for cause in error_chain(error))


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error or its causes; None if the server did not answer."""
    for cause in error_chain(error):
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if status is not None:
            return status
    return None


def explain(error: Exception, repository: str, token: str | None = None) -> None:
    """Add the repository and a remedy to an error's message, and redact the token.

    The error keeps its class, so that `except HfHubHTTPError` works. Tracebacks are removed: tools
    that show local variables would show the token in the headers of the client.

    Args:
        error: the error, which is changed in place.
        repository: name of the repository.
        token: the secret to redact.
    """
    note = f"\nThe repository is {repository!r}."
    status = http_status(error)
    if status is not None and status in _REMEDIES:
        note = f"{note} {_REMEDIES[status]}"

    strip_token(error, token)
    message, *other_args = error.args or ("",)

    # The first argument of an OSError is its errno, which must stay an integer.
    if not isinstance(message, int) and note not in str(message):
        error.args = (f"{message}{note}", *other_args)


def describe(error: BaseException, token: str | None = None) -> str:
    """Return an error and its cause in one line, for logs."""
    text = _in_one_line(error, token)
    if error.__cause__ is not None:
        text = f"{text.rstrip('.')}, caused by {_in_one_line(error.__cause__, token)}"
    return text


def _in_one_line(error: BaseException, token: str | None) -> str:
    """Return the class and the message of an error in one line, shortened."""
    # Redact the token before truncating a long message, which may split a token.
    message = " ".join(str(error).split())
    text = replace_token(f"{type(error).__name__}: {message}", token)
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[:_MAX_LENGTH]} ..."


def _is_transport_error(error: BaseException) -> bool:
    """Return whether the connection failed, or a gateway returned HTML instead of JSON."""
    error_class = type(error)
    library = error_class.__module__.partition(".")[0]
    return (
        isinstance(error, TimeoutError)
        or library in _TRANSPORT_LIBRARIES
        or "JSON" in error_class.__name__
    )
