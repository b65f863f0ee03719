"""A local S3 server (moto) that can be stopped, restarted, and told how to answer a request."""

import threading
from collections.abc import Callable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "key-of-tests",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Requests that fail are repeated by the uploads themselves.
    "AWS_MAX_ATTEMPTS": "1",
}


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


class StoreServer:
    """S3 at `environment["AWS_ENDPOINT_URL"]`; what it holds outlives `stop`.

    `watch`, if set, is called with the method and the path of each request before it is answered.
    """

    def __init__(self) -> None:
        self.watch: Callable[[str, str], None] | None = None
        self._application = DomainDispatcherApplication(create_backend_app)
        self._port = 0
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", **ACCOUNT}

    def start(self) -> None:
        """Listen, at the same port each time."""
        options: dict[str, Any] = {"threaded": True, "request_handler": _Quiet}
        self._server = make_server("127.0.0.1", self._port, self._answer, **options)
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def stop(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: dict[str, Any], begin: Any) -> Any:
        if self.watch is not None:
            self.watch(request["REQUEST_METHOD"], request["PATH_INFO"])
        return self._application(request, begin)
