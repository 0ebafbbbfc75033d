"""A server with the part of Google Cloud Storage's JSON API that gcsfs uses, and one bucket in memory."""

import base64
import hashlib
import json
import re
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from small_servers import QuietHandler, running


class SmallBucket(ThreadingHTTPServer):
    """`mine` may be used; `closed` refuses; no other is there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, bytearray]] = {}
        """The unfinished uploads: their object's name, and the bytes received."""

    @property
    def address(self) -> str:
        """The address for STORAGE_EMULATOR_HOST."""
        return f"http://127.0.0.1:{self.server_port}"


def small_bucket() -> AbstractContextManager[SmallBucket]:
    """Run the server for the length of a block."""
    return running(SmallBucket())


class _Request(QuietHandler):
    server: SmallBucket
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, content: bytes | dict[str, Any] = b"", **headers: str) -> None:
        self.respond(status, content if isinstance(content, bytes) else json.dumps(content).encode(), headers)

    def describe_object(self, name: str) -> dict[str, Any]:
        content = self.server.objects[name]
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        times = {"timeCreated": "2026-11-20T22:30:00.000Z", "updated": "2026-11-20T22:30:00.000Z"}
        return {"kind": "storage#object", "name": name, "bucket": "mine", "size": str(len(content)), "md5Hash": md5, **times}

    def read_target(self) -> tuple[str | None, dict[str, str]]:
        """Return the object's name, or None for the list of all; answers by itself for another bucket."""
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        found = re.fullmatch(r"(?:/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", parts.path)
        assert found, self.path
        if found[1] != "mine":
            status = 403 if found[1] == "closed" else 404
            self.answer(status, {"error": {"code": status, "message": "no" if status == 403 else "The bucket does not exist."}})
            raise Elsewhere
        return unquote(found[2]) if found[2] else None, query

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except Elsewhere:
            return

    def do_GET(self) -> None:
        name, query = self.read_target()
        objects = self.server.objects
        if name is None:
            prefix = query.get("prefix", "")
            inside = sorted(found for found in objects if found.startswith(prefix))
            if "delimiter" in query:
                inside = [found for found in inside if "/" not in found[len(prefix) :]]
            self.answer(200, {"kind": "storage#objects", "items": [self.describe_object(found) for found in inside]})
        elif name not in objects:
            self.answer(404, {"error": {"code": 404, "message": "No such object"}})
        elif self.path.startswith("/download"):
            byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
            assert byte_range
            content = objects[name][int(byte_range[1]) : int(byte_range[2]) + 1 if byte_range[2] else None]
            self.answer(206 if "Range" in self.headers else 200, content)
        else:
            self.answer(200, self.describe_object(name))

    def do_POST(self) -> None:
        if self.path.startswith("/session/"):
            self.receive_piece()
            return
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, query = self.read_target()
        if query["uploadType"] == "resumable":
            number = f"session-of-some-length-{len(self.server.uploads)}"
            self.server.uploads[number] = (query["name"], bytearray())
            self.answer(200, {}, Location=f"{self.server.address}/session/{number}")
            return
        _, metadata, data, _ = content.split(b"--==0==", 3)
        name = json.loads(metadata.split(b"\n\n", 1)[1])["name"]
        self.server.objects[name] = data.split(b"\n\n", 1)[1][:-1]
        self.answer(200, self.describe_object(name))

    def receive_piece(self) -> None:
        """Receive one piece of an upload; the last one makes the object."""
        name, received = self.server.uploads[self.path.rsplit("/", 1)[1]]
        received += self.rfile.read(int(self.headers["Content-Length"]))
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", self.headers["Content-Range"])
        assert found
        if found[3] != "*" and len(received) == int(found[3]):
            self.server.objects[name] = bytes(received)
            self.answer(200, self.describe_object(name))
        else:
            self.answer(308, b"", Range=f"bytes=0-{len(received) - 1}")

    def do_DELETE(self) -> None:
        name, _ = self.read_target()
        self.server.objects.pop(str(name), None)
        self.answer(204)


class Elsewhere(Exception):
    """A request for another bucket, which was answered."""
