"""A small stand-in for the Hub: its HTTP API as far as `huggingface_hub` uses it for models, on a
loopback port.

It holds repositories in memory, branches and commits and all, stores large files beside them as the
real one does, and can be told to be slow, to refuse, to break a connection, or to let its callers
wait.
"""

import base64
import hashlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_thisIsATokenOfTheTestsOnly"
ANOTHER_TOKEN = "hf_anotherTokenOfTheTests"
USER = "me"
LARGE = (".safetensors", ".bin", ".pt", ".pth", ".png", ".ckpt")


class RefusalError(Exception):
    """An answer with a status, a text, and headers of the Hub."""

    def __init__(self, status: int, text: str, **headers: str):
        super().__init__(text)
        self.status, self.content, self.headers = status, {"error": text}, headers


@dataclass(frozen=True)
class Commit:
    oid: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repo:
    private: bool
    branches: dict[str, list[Commit]] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)

    def at(self, revision: str) -> Commit:
        """The commit that a branch, or the name of a commit, stands for."""
        if revision in self.branches:
            return self.branches[revision][-1]
        for commit in (commit for commits in self.branches.values() for commit in commits):
            if commit.oid == revision:
                return commit
        message = f"Invalid rev id: {revision}"
        raise RefusalError(404, message, X_Error_Code="RevisionNotFound", X_Error_Message=message)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.at(revision).files

    def messages(self, revision: str = "main") -> list[str]:
        return [commit.message for commit in self.branches[revision]]


@dataclass
class Trouble:
    """Act on requests whose `METHOD /path` matches: `times` of them, None for all."""

    pattern: str
    act: Callable[["Handler"], bool]
    times: int | None = None

    def takes(self, request: str) -> bool:
        if self.times == 0 or not re.search(self.pattern, request):
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class HubServer:
    """Started by `with HubServer() as hub:`; `hub.url` goes into HF_ENDPOINT."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.troubles: list[Trouble] = []
        self.all_regular = False
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads, self.server.hub = True, self
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def make(self, name: str, private: bool = False, **files: bytes) -> Repo:
        """A repository that is there already."""
        repo = self.repos[name] = Repo(private)
        repo.branches["main"] = [_commit("initial commit", {".gitattributes": b"* lfs\n", **files})]
        return repo

    def asked(self, pattern: str) -> list[str]:
        """The requests so far that match."""
        return [request for request, _ in self.requests if re.search(pattern, request)]

    # Troubles.

    def refuse(
        self, pattern: str, status: int, times: int | None = None, text: str = "no", **headers: str
    ) -> None:
        def act(handler: "Handler") -> bool:
            handler.answer({"error": text}, status, **headers)
            return True

        self.troubles.append(Trouble(pattern, act, times))

    def break_off(self, pattern: str, times: int | None = None) -> None:
        """Close the connection without an answer."""

        def act(handler: "Handler") -> bool:
            handler.close_connection = True
            handler.connection.close()
            return True

        self.troubles.append(Trouble(pattern, act, times))

    @contextmanager
    def held(self, pattern: str) -> Iterator[threading.Event]:
        """Requests wait until the event is set, at the latest at the end of the `with` block."""
        go = threading.Event()

        def act(handler: "Handler") -> bool:
            assert go.wait(60)
            return False

        self.troubles.append(Trouble(pattern, act))
        try:
            yield go
        finally:
            go.set()


def _commit(message: str, files: dict[str, bytes], before: str = "") -> Commit:
    digest = hashlib.sha1(f"{before}{message}{sorted(files)}{time.monotonic_ns()}".encode())
    return Commit(digest.hexdigest(), message, files)


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Finds the method for a path in ROUTES."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: with two, each answer takes 40 ms
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Nothing on the screen."""

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - names of http.server

    @property
    def hub(self) -> HubServer:
        return self.server.hub

    def handle_request(self) -> None:
        path, _, query = self.path.partition("?")
        self.query = urllib.parse.parse_qs(query)
        request = f"{self.command} {path}"
        self.body = self.read_body()
        with self.hub.lock:
            self.hub.requests.append((request, self.headers.get("Authorization")))
            trouble = next((fault for fault in self.hub.troubles if fault.takes(request)), None)
        if trouble is not None and trouble.act(self):
            return
        self.answer_headers: dict[str, Any] = {}
        try:
            self.answer(self.found(request), **self.answer_headers)
        except RefusalError as refusal:
            self.answer(refusal.content, refusal.status, **refusal.headers)

    def found(self, request: str) -> Any:
        for pattern, method, needs_token in ROUTES:
            if match := re.fullmatch(pattern, request):
                if needs_token:
                    self.check_token()
                with self.hub.lock:
                    return getattr(self, method)(
                        *(urllib.parse.unquote(part) for part in match.groups())
                    )
        raise RefusalError(501, f"the stand-in does not know {request}")

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def check_token(self) -> None:
        """Refuse unknown ones; unlike the real Hub, this one repeats the token, to show
        that it is passed on.
        """
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (TOKEN, ANOTHER_TOKEN):
            message = "Invalid credentials in Authorization header"
            raise RefusalError(401, f"Invalid user token {token}", X_Error_Message=message)

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def repo(self, name: str) -> Repo:
        if name not in self.hub.repos:
            raise RefusalError(404, "Repository not found", X_Error_Code="RepoNotFound")
        return self.hub.repos[name]

    # Routes: each returns what is answered.

    def create(self) -> Any:
        options = json.loads(self.body)
        owner = options.get("organization") or USER
        name = f"{owner}/{options['name']}"
        if owner not in (USER, "team"):
            raise RefusalError(
                403, "no rights", X_Error_Message=f"You cannot create a model under {owner}"
            )
        url = {"url": f"{self.hub.url}/{name}", "name": name}
        if name in self.hub.repos:
            refusal = RefusalError(409, "You already created this model repo")
            refusal.content |= url
            raise refusal
        self.hub.make(
            name, private=options.get("visibility") == "private" or bool(options.get("private"))
        )
        return url

    def refs(self, name: str) -> Any:
        repo = self.repo(name)
        branches = [
            {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": commits[-1].oid}
            for branch, commits in repo.branches.items()
        ]
        tags = [
            {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": repo.at("main").oid}
            for tag in repo.tags
        ]
        return {"branches": branches, "converts": [], "tags": tags}

    def branch(self, name: str, branch: str) -> Any:
        branches = self.repo(name).branches
        if branch in branches:
            raise RefusalError(409, "Reference already exists")
        branches[branch] = list(branches["main"])
        return {}

    def info(self, name: str, revision: str = "main") -> Any:
        commit = self.repo(name).at(revision)
        licenses = re.findall(rb"^license: (\S+)", commit.files.get("README.md", b""), re.MULTILINE)
        tags = [f"license:{license_name.decode()}" for license_name in licenses]
        siblings = [{"rfilename": path} for path in commit.files]
        private = self.hub.repos[name].private
        return {
            "id": name,
            "sha": commit.oid,
            "tags": tags,
            "siblings": siblings,
            "private": private,
        }

    def tree(self, name: str, revision: str) -> Any:
        entries = []
        for path, content in self.repo(name).files(revision).items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
            if path.endswith(LARGE):
                entry["lfs"] = {
                    "oid": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 130,
                }
            entries.append(entry)
        return entries

    def preupload(self, name: str, revision: str) -> Any:
        files = []
        for item in json.loads(self.body)["files"]:
            path = item["path"]
            large = path.endswith(LARGE) and not self.hub.all_regular
            content = self.repo(name).files(revision).get(path)
            oid = (
                None
                if content is None
                else hashlib.sha256(content).hexdigest()
                if large
                else git_oid(content)
            )
            mode = "lfs" if large else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def batch(self, name: str) -> Any:
        objects = []
        for item in json.loads(self.body)["objects"]:
            entry: dict[str, Any] = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.stored:
                entry["actions"] = {
                    "upload": {"href": f"{self.hub.url}/storage/{item['oid']}", "header": {}}
                }
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def store(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusalError(400, "the content has another hash")
        self.hub.stored[oid] = self.body
        return {}

    def commit(self, name: str, branch: str) -> Any:
        repo = self.repo(name)
        repo.at(branch)
        if branch not in repo.branches:
            raise RefusalError(400, f"{branch} is not a branch")
        lines = [json.loads(line) for line in self.body.splitlines()]
        (header,) = [line["value"] for line in lines if line["key"] == "header"]
        files = dict(repo.files(branch))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.stored:
                    raise RefusalError(400, f"{value['path']} was not uploaded")
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        new_commit = _commit(header["summary"], files, repo.branches[branch][-1].oid)
        repo.branches[branch].append(new_commit)
        return {
            "commitUrl": f"{self.hub.url}/{name}/commit/{new_commit.oid}",
            "commitOid": new_commit.oid,
        }

    def resolve(self, name: str, revision: str, path: str) -> Any:
        commit = self.repo(name).at(revision)
        content = commit.files.get(path)
        if content is None:
            raise RefusalError(404, "Entry not found", X_Error_Code="EntryNotFound")
        etag = hashlib.sha256(content).hexdigest() if path.endswith(LARGE) else git_oid(content)
        self.answer_headers = {"X_Repo_Commit": commit.oid, "ETag": f'"{etag}"'}
        return content

    def validate(self) -> Any:
        return {"errors": [], "warnings": []}


NAME = r"([^/]+/[^/]+?)"
ROUTES = [
    (r"POST /api/repos/create", "create", True),
    (r"POST /api/validate-yaml", "validate", False),
    (rf"GET /api/models/{NAME}", "info", True),
    (rf"GET /api/models/{NAME}/revision/([^/]+)", "info", True),
    (rf"GET /api/models/{NAME}/refs", "refs", True),
    (rf"GET /api/models/{NAME}/tree/([^/]+)", "tree", True),
    (rf"POST /api/models/{NAME}/branch/([^/]+)", "branch", True),
    (rf"POST /api/models/{NAME}/preupload/([^/]+)", "preupload", True),
    (rf"POST /api/models/{NAME}/commit/([^/]+)", "commit", True),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", "batch", True),
    (r"PUT /storage/([0-9a-f]+)", "store", False),
    (rf"(?:GET|HEAD) /{NAME}/resolve/([^/]+)/(.+)", "resolve", True),
]
