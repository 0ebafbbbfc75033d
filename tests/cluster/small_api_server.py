"""A server that stands for the API of Kubernetes and AWS Batch: it records each job, and reports it as done."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, dict[str, Any]], dict[str, Any]]
DEFINITION = "arn:aws:batch:us-east-1:1:job-definition/"


class SmallApi(ThreadingHTTPServer):
    """Records what was submitted; calls `when_submitted` before it answers."""

    def __init__(self, when_submitted: Callable[[], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.when_submitted = when_submitted
        self.submitted: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the API answers."""
        what = path.partition("?")[0].rstrip("/").rpartition("/")[2]
        if method == "POST" and what in ("jobs", "registerjobdefinition"):
            self.submitted.append(body)
            self.when_submitted()
        name = body.get("jobDefinitionName", "")
        answers = {
            "registerjobdefinition": {"jobDefinitionName": name, "jobDefinitionArn": f"{DEFINITION}{name}:1", "revision": 1},
            "submitjob": {"jobName": "job", "jobId": "job"},
            "describejobs": {"jobs": [{"jobId": "job", "status": "SUCCEEDED", "container": {"exitCode": 0}}]},
            "pods": {"kind": "PodList", "apiVersion": "v1", "items": []},
            "status": {"kind": "Job", "apiVersion": "batch/v1", "status": {"succeeded": 1}},
        }
        return answers.get(what, body)


class _Request(BaseHTTPRequestHandler):
    server: SmallApi

    def _reply(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = json.dumps(self.server.answer(self.command, self.path, json.loads(content or "{}"))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = _reply

    def log_message(self, *_: object) -> None:
        pass
