"""An S3 server on this machine, behind a proxy with latency and faults."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = {"client_options": {"allow_http": True, "timeout": "5s"}}
_BUCKET = "bucket"


class Proxy(BaseHTTPRequestHandler):
    """Forwards requests; ``server.fault(n)`` says what happens to the n-th read of an object."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server: Any = self.server
        fault = "none"
        if "list-type" not in self.path:
            with server.lock:
                server.reads[self.path.partition("?")[0]] += 1
                number = sum(server.reads.values())
            time.sleep(server.latency_s)
            fault = server.fault(number)
        if fault == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        refusal = {"busy": 503, "denied": 403}.get(fault)
        status, headers, body = self._forwarded() if refusal is None else (refusal, {}, fault.encode())
        if fault == "short":  # as a proxy may store what was cut
            body = body[: len(body) // 2]
        headers = {**headers, "ETag": '"another"'} if fault == "changed" else headers
        self.send_response(status)
        for name in ("ETag", "Last-Modified", "Content-Type"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(10**12 if fault == "huge" else len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        if fault == "huge":  # obstore makes room once there is more than one piece
            time.sleep(0.1)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
        if fault in ("cut", "huge"):
            self.close_connection = True

    def _forwarded(self) -> tuple[int, Any, bytes]:
        server: Any = self.server
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.behind)) as connection:
            connection.request("GET", self.path)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


class Store:
    """A bucket with a folder's files.

    Attributes:
        latency_s: Of each read of an object.
        fault: ``"none"``, ``"busy"``, ``"denied"``, ``"cut"``, ``"drop"``, ``"short"`` (cut, and announced so),
            ``"changed"`` (another entity tag) or ``"huge"`` (announced as such), by the number of the read.
        reads: How often each path was read.
    """

    def __init__(self, behind: int) -> None:
        self._server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        self._server.daemon_threads = True
        self._server.behind, self._server.lock, self._server.reads = behind, threading.Lock(), Counter()
        self._server.latency_s = 0.0
        self._server.fault = lambda number: "none"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def set(self, latency_s: float = 0.0, fault: Callable[[int], str] = lambda number: "none") -> None:
        self._server.latency_s, self._server.fault, self._server.reads = latency_s, fault, Counter()

    @property
    def reads(self) -> Counter[str]:
        return self._server.reads

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{_BUCKET}"

    @property
    def options(self) -> dict[str, Any]:
        """For an ``s3://bucket`` URL."""
        endpoint = self.url.removesuffix(f"/{_BUCKET}")
        config = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        return {**OPTIONS, "config": config}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def store_of(folder: Path) -> Iterator[tuple[Store, Any]]:
    """Serve a folder's files; yields the store and a boto3 client of it."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=_BUCKET, ACL="public-read-write")
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=_BUCKET, Key=f"{path.relative_to(folder)}", Body=path.read_bytes())
    store = Store(port)
    try:
        yield store, client
    finally:
        store.close()
        client.close()
        server.stop()
