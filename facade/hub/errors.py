"""Errors of the Hub: retries of transient ones, remedies for the others, and redaction of
tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ...lightning_modules.common.redaction import error_chain, replace_token, strip_token

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PAUSES = (2.0, 8.0)
"""Seconds before the second and third attempt, in addition to the retries of `huggingface_hub`."""

SECONDS_OF_RETRIES = 20.0
"""No attempt begins later than this after the first failure: `huggingface_hub` repeats some
requests for 23 s by itself.
"""

_PASSING = (408, 429, 500, 502, 503, 504)
_TRANSPORT = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
_REMEDIES = {
    401: "The Hub does not know the token. Pass hub_token=..., or run `hf auth login`.",
    403: (
        "The token may not write there. Take one with the role `write`, and see that hub_model_id "
        "names your owner."
    ),
    404: (
        "The token sees no such repository or branch. See that hub_model_id and hub_revision are "
        "spelled right."
    ),
    429: "The Hub takes no more requests for now. Save less often, or wait.",
}
_LENGTH = 400


def retried(call: Callable[[], Result], token: str | None = None) -> Result:
    """Call, and retry after a pause on transient errors: a broken connection, an overloaded server.

    Args:
        call: idempotent.
        token: redacted in logs.
    """
    first_failure: float | None = None
    for pause in PAUSES:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if first_failure is None:
                first_failure = now
            if not is_passing(error) or now - first_failure > SECONDS_OF_RETRIES:
                raise
            logger.info("The Hub: %s. Trying again in %g s.", describe(error, token), pause)
            time.sleep(pause)
    return call()


def is_passing(error: BaseException) -> bool:
    """Return whether an error is transient."""
    status = status_of(error)
    if status is not None:
        return status in _PASSING
    return any(_is_transport_error(one) for one in error_chain(error))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error or its causes; None if the server did not answer."""
    statuses = (
        getattr(getattr(one, "response", None), "status_code", None) for one in error_chain(error)
    )
    return next((status for status in statuses if status is not None), None)


def explained(error: Exception, repository: str, token: str | None = None) -> Exception:
    """Add repository and remedy to the message of an error, and redact the token.

    Tracebacks are removed: tools that show local variables would show the token in the headers of
    the client.

    Args:
        error: of any class, which is kept, so that `except HfHubHTTPError` works.
        repository: name of the repository.
        token: redacted.
    """
    remedy = _REMEDIES.get(status_of(error) or 0)
    note = f"\nThis was about the repository {repository!r}. {remedy or ''}".rstrip()
    strip_token(error, token)
    first, *rest = error.args or ("",)
    if not isinstance(first, int) and note not in str(first):  # an int is the errno of an OSError
        error.args = (f"{first}{note}", *rest)
    return error


def describe(error: BaseException, token: str | None = None) -> str:
    """Return an error in one line, for logs."""
    said = [
        f"{type(one).__name__}: {' '.join(str(one).split())}"
        for one in (error, error.__cause__)
        if one
    ]
    texts = [text if len(text) <= _LENGTH else f"{text[:_LENGTH]} ..." for text in said]
    return replace_token(" From ".join(texts), token)


def _is_transport_error(error: BaseException) -> bool:
    """Return whether the connection failed, or a gateway answered with HTML instead of JSON."""
    cls = type(error)
    return (
        isinstance(error, TimeoutError)
        or cls.__module__.partition(".")[0] in _TRANSPORT
        or "JSON" in cls.__name__
    )
