"""Serve a folder's files over HTTP from memory, each answer after a latency.

``python _objectserver.py FOLDER LATENCY_S CORES`` prints its port and serves until its standard input closes. It knows
just enough HTTP for a client that reads objects: an event loop for each core, with no thread and no copy for each
request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection, which come one after the other."""

    def __init__(self, answers: dict[bytes, bytes], latency_s: float) -> None:
        self._answers = answers
        self._latency_s = latency_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            path = self._received.split(b" ", 2)[1]
            self._received = self._received[end + 4 :]
            answer = self._answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            asyncio.get_running_loop().call_later(self._latency_s, self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        transport = self._transport
        if isinstance(transport, asyncio.Transport) and not transport.is_closing():
            transport.write(answer)


def _answers_of(folder: Path) -> dict[bytes, bytes]:
    found = {}
    for path in folder.rglob("*.jpg"):
        body = path.read_bytes()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
        found[b"/" + os.fsencode(path.relative_to(folder))] = head.encode() + body
    return found


async def _serve(listening: socket.socket, answers: dict[bytes, bytes], latency_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answers, latency_s), sock=listening)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main(folder: Path, latency_s: float, cores: set[int]) -> None:
    """Serve on ``cores``, a process on each; they accept connections in turn."""
    answers = {unquote_to_bytes(path): answer for path, answer in _answers_of(folder).items()}
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listening.getsockname()[1], flush=True)  # noqa: T201 - the protocol
    own, *others = sorted(cores)
    for core in others:
        if os.fork() == 0:
            own = core
            break
    os.sched_setaffinity(0, {own})
    asyncio.run(_serve(listening, answers, latency_s))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), {int(core) for core in sys.argv[3].split(",")})
