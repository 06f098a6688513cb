"""A real HTTP server that keeps what is posted to it, or lets a sender wait for its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


class Receiver:
    """What was posted, as path and body. While `answers` is not set, no request gets an answer.

    Attributes:
        status: The status of the answer to a body.
    """

    def __init__(self) -> None:
        self.posted: list[tuple[str, bytes]] = []
        self.answers = Event()
        self.answers.set()
        self.status: Callable[[bytes], int] = lambda _: 200
        made = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                made.posted.append((self.path, body))
                made.answers.wait()
                self.send_response(made.status(body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The bodies that were posted, as JSON."""
        return [json.loads(body) for _, body in list(self.posted)]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own."""
    made = Receiver()
    try:
        yield made
    finally:
        made.close()
