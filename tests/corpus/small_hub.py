"""The part of a Hugging Face hub that `datasets` needs, on this machine: one dataset at one commit."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from urllib.parse import unquote, urlparse

from small_servers import QuietHandler, running

NAME, COMMIT = "somebody/letters", "c0ffee" * 6 + "c0de"


class SmallHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.requests: list[str] = []


class _Handler(QuietHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(path)
        if path == f"/api/datasets/{NAME}/revision/{COMMIT}":
            self.respond(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(tree := f"/api/datasets/{NAME}/tree/{COMMIT}"):
            self.respond(200, json.dumps(self._listed(path.removeprefix(tree).strip("/"))).encode())
        elif path.startswith(files := f"/datasets/{NAME}/resolve/{COMMIT}/"):
            self._file(path.removeprefix(files))
        elif path == f"/api/datasets/{NAME}/revision/main":
            self.respond(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(tree := f"/api/datasets/{NAME}/tree/main"):
            self.respond(200, json.dumps(self._listed(path.removeprefix(tree).strip("/"))).encode())
        elif path.startswith(files := f"/datasets/{NAME}/resolve/main/"):
            self._file(path.removeprefix(files))
        else:
            self.respond(404, headers={"X-Error-Code": "RepoNotFound"})

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
            self.respond(404, headers=headers | {"X-Error-Code": "EntryNotFound"})
        elif wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            self.respond(206, content[int(first) : int(last) + 1], headers)
        else:
            self.respond(200, content, headers)


def running_hub(files: Mapping[str, bytes]) -> AbstractContextManager[SmallHub]:
    """Run a hub with some files for the length of a block."""
    return running(SmallHub(files))
