"""A server on this machine with the requests that the client of Weights & Biases makes to start, resume and write a run."""

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SmallWandb(ThreadingHTTPServer):
    """A server that keeps the rows of one run, and the authorisation of its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rows: list[dict[str, Any]] = []
        self.authorisations: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes the connection."""

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return GraphQL's answer; empty where the client continues without one."""
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)
        bucket = {
            "id": "bucket",
            "name": variables.get("name"),
            "displayName": "shown",
            "config": "{}",
            "wandbConfig": json.dumps({"t": 1}),  # its client has begun the run
            "summaryMetrics": "{}",
            "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]),
            "eventsTail": "[]",
            "historyLineCount": len(self.rows),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "tags": [],
            "project": {"id": "project", "name": "relm", "entity": {"id": "entity", "name": "me"}},
        }
        match operation.group(1) if operation else "":
            case "RunResumeStatus":
                return {"model": {**bucket["project"], "bucket": bucket if self.rows else None}}
            case "UpsertBucket":
                return {"upsertBucket": {"bucket": bucket, "inserted": not self.rows}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
                return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
        return {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallWandb

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            self.server.authorisations.add(self.headers["Authorization"])
            request = json.loads(body)
            answer = {"data": self.server.answer(request["query"], request.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"content": []})
            self.server.rows += [json.loads(row) for row in history["content"]]
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST


@contextlib.contextmanager
def small_wandb() -> Iterator[SmallWandb]:
    """Run the server for the length of the block."""
    with SmallWandb() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
