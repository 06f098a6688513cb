"""A proxy before a real HTTP server that answers as told, or cuts the line, instead of passing a request on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType

import httpx

from tests.support.http_client import HTTP


@dataclass(frozen=True)
class Fault:
    """Of one request. status: the answer's, 0 for a cut line; reaches: whether the server gets it before;
    repeats: whether the server gets it twice, and its second answer is passed on; read: the part of the body that is
    read before the line is cut."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    reaches: bool = False
    repeats: bool = False
    read: float = 1.0


class Proxy:
    """Passes requests on to `target`; `faults` are for the next ones to `path`, in order.

    seen: bodies, and targets with their query, of the requests to `path`; passed: is called when one has reached the
    server, before it is answered.
    """

    def __init__(self, target: str, path: str) -> None:
        self.faults: deque[Fault] = deque()
        self.seen: list[tuple[str, bytes]] = []
        self.passed: Callable[[], None] = lambda: None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_HEAD(self) -> None:
                self.do_POST()

            def do_DELETE(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                ours = self.path.startswith(path)
                fault = proxy.faults.popleft() if ours and proxy.faults else None
                body = self.rfile.read(int(length * fault.read) if fault and not fault.status else length)
                if ours:
                    proxy.seen.append((self.path, body))
                if fault is None or fault.reaches or fault.repeats:
                    given = {k: v for k, v in self.headers.items() if k in ("Authorization", "Content-Type")}
                    to = target + self.path
                    try:
                        for _ in range(2 if fault and fault.repeats else 1):
                            answer = HTTP.request(self.command, to, content=body, headers=given, timeout=120)
                    except httpx.HTTPError:
                        self.close_connection = True
                        return
                    if ours:
                        proxy.passed()
                    if fault is None or fault.repeats:
                        self._answer(answer.status_code, {}, answer.content)
                        return
                if fault.status:
                    self._answer(fault.status, fault.headers, fault.body.encode())
                else:
                    self.close_connection = True

            def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
