"""A program: a server of S3's interface with the bucket `relm`, and one of a folder's files; it prints their addresses."""

import functools
import http.server
import logging
import sys

import boto3
from moto.server import ThreadedMotoServer


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0)
server.start()
host, port = server.get_host_and_port()
boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="relm")
data = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=sys.argv[1]))
print(f"ready: http://{host}:{port} http://127.0.0.1:{data.server_port}", flush=True)
data.serve_forever()
