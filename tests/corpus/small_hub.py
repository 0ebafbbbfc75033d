"""The part of a Hugging Face hub that `datasets` needs, on this machine: one dataset at one commit."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

NAME, COMMIT = "somebody/letters", "c0ffee" * 6 + "c0de"


class SmallHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(path)
        if path == f"/api/datasets/{NAME}/revision/{COMMIT}":
            self._answer(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(tree := f"/api/datasets/{NAME}/tree/{COMMIT}"):
            self._answer(200, json.dumps(self._listed(path.removeprefix(tree).strip("/"))).encode())
        elif path.startswith(files := f"/datasets/{NAME}/resolve/{COMMIT}/"):
            self._file(path.removeprefix(files))
        elif path == f"/api/datasets/{NAME}/revision/main":
            self._answer(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(tree := f"/api/datasets/{NAME}/tree/main"):
            self._answer(200, json.dumps(self._listed(path.removeprefix(tree).strip("/"))).encode())
        elif path.startswith(files := f"/datasets/{NAME}/resolve/main/"):
            self._file(path.removeprefix(files))
        else:
            self._answer(404, headers={"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _listed(self, folder: str) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
            for path, content in self.server.files.items()
            if path.rpartition("/")[0] == folder
        ]

    def _file(self, path: str) -> None:
        headers = {"X-Repo-Commit": COMMIT, "ETag": '"x"'}
        content = self.server.files.get(path)
        if content is None:
            self._answer(404, headers=headers | {"X-Error-Code": "EntryNotFound"})
        elif wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            self._answer(206, content[int(first) : int(last) + 1], headers)
        else:
            self._answer(200, content, headers)

    def _answer(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextlib.contextmanager
def running_hub(files: Mapping[str, bytes]) -> Iterator[SmallHub]:
    hub = SmallHub(files)
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
