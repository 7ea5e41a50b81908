"""Serve objects over a socket at a limited rate, to simulate slow storage.

``python _slowstore.py SOCKET OBJECT_BYTES BYTES_PER_S`` listens until its standard input closes. Clients
send eight bytes, an object's number, and get the object; they wait in ``recv`` meanwhile, as they would for a disk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time


def _serve(path: str, object_bytes: int, bytes_per_s: float) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    content = bytes(range(256)) * (object_bytes // 256 + 2)
    line = threading.Lock()  # the one path that all objects come by

    def answer(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while len(request := client.recv(8)) == 8:
                begin = struct.unpack("<q", request)[0] % 256
                with line:
                    time.sleep(object_bytes / bytes_per_s)
                client.sendall(content[begin : begin + object_bytes])

    def accept() -> None:
        while True:
            client, _ = server.accept()
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print("ready", flush=True)  # noqa: T201 - the protocol
    sys.stdin.read()


class Client:
    """Read objects over a connection that is opened on first use, one per worker."""

    def __init__(self, path: str, object_bytes: int) -> None:
        self._path = path
        self._object_bytes = object_bytes
        self._connection: tuple[int, socket.socket] | None = None

    def read(self, number: int) -> bytes:
        """One object. Blocks for as long as the store takes."""
        if self._connection is None or self._connection[0] != os.getpid():
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._path)
            self._connection = os.getpid(), connection
        self._connection[1].sendall(struct.pack("<q", number))
        received = bytearray(self._object_bytes)
        view, got = memoryview(received), 0
        while got < self._object_bytes:
            count = self._connection[1].recv_into(view[got:])
            if not count:
                raise ConnectionError("the store has closed the connection")
            got += count
        return bytes(received)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
