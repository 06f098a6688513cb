"""The HTTP server of an instance, in a thread of its own.

Bounded are the connections, the size of a request's head, the requests in progress, and the time that a client may take
to send or to read.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import HostError, SettingError
from penstock.settings import settings
from penstock.views.api import problems
from penstock.views.api.request_metrics import RequestMetrics
from penstock.web import access

log = logging.getLogger(__name__)

MAX_CONNECTIONS, MAX_REQUESTS = 1024, 768
HEAD_LIMIT = 64 * 1024
# Seconds in which a head must be there, and in which what is written must be taken.
HEAD_TIMEOUT, READ_TIMEOUT = 10.0, 10.0
# Bytes that are written and not taken, of all connections.
MAX_UNREAD = 128 << 20
OPEN_TO_ALL = ("/v1/live", "/v1/ready")
START_TIMEOUT = 20.0


class BoundedConnection(HttpToolsProtocol):
    """A connection that holds no more than it may, and is closed where its caller does nothing."""

    _header_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, f"there are more than {MAX_CONNECTIONS} connections")
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        # A parser that has seen the head counts no more; one that is within it holds all of it.
        self._header_bytes += len(data)
        before = self._header_bytes
        super().data_received(data)
        if self._header_bytes >= before > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(431, f"the head of a request is at most {HEAD_LIMIT} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def on_headers_complete(self) -> None:
        self._header_bytes = -HEAD_LIMIT * 1024
        self._unexpect()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._header_bytes = max(0, self._header_bytes)
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unexpect()
        if self._slow is not None:
            self._slow.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow = self.loop.call_later(READ_TIMEOUT, self.transport.abort)
        self._spare()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _spare(self) -> None:
        """Cut off those who have taken nothing for longest, where all together leave too much."""
        slow = {
            one.transport: one._slow.when()
            for one in self.connections
            if isinstance(one, BoundedConnection) and one._slow
        }
        unread_bytes = {
            transport: transport.get_write_buffer_size() for transport in sorted(slow, key=slow.__getitem__)
        }
        total = sum(unread_bytes.values())
        for transport, size in unread_bytes.items():
            if total <= MAX_UNREAD:
                break
            transport.abort()
            total -= size

    def _expect(self) -> None:
        self._unexpect()
        self._timer = self.loop.call_later(HEAD_TIMEOUT, self._late)

    def _unexpect(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self._header_bytes > 0:
            self._refuse(408, f"the head of a request did not arrive within {HEAD_TIMEOUT:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, detail: str) -> None:
        self._unexpect()
        if self.transport.is_closing():
            return
        body = problems.body(status, detail)
        head = {**problems.status_headers(status), "content-type": problems.TYPE, "content-length": str(len(body))}
        first, last = f"HTTP/1.1 {status} {problems.phrase(status)}", "connection: close"
        lines = [first, *(f"{name}: {value}" for name, value in head.items()), last]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()


class AccessGuard:
    """Lets in who has the token, by a name of this server's, and no more at once than can be answered."""

    def __init__(self, app: ASGIApp, token: str, names: list[str], requests: RequestMetrics) -> None:
        self._app, self._token, self._names, self._requests = app, token.encode(), names, requests
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            self._requests.take(scope, refusal[0], 0.0)
            await problems.problem(*refusal)(scope, receive, send)
            return
        self._working += 1
        has_started, status, at = False, 500, time.monotonic()

        async def send_checked(message: Any) -> None:
            nonlocal has_started, status
            if message["type"] == "http.response.start":
                has_started, status = True, message["status"]
                message["headers"] = [
                    *message["headers"], (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"),
                ]  # fmt: skip
            await send(message)

        try:
            await self._app(scope, receive, send_checked)
        except Exception:
            log.exception("a request failed")
            if has_started:
                return
            await problems.problem(500, "this should not have happened; see the instance's log")(scope, receive, send)
        finally:
            self._working -= 1
            self._requests.take(scope, status, time.monotonic() - at)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if scope["path"] in OPEN_TO_ALL:
            return None
        if self._token:
            authorization = headers.get(b"authorization", b"")
            if authorization[:7].lower() != b"bearer " or not hmac.compare_digest(
                authorization[7:].strip(), self._token
            ):
                return 401, "send the token of the views as `Authorization: Bearer TOKEN`"
        elif not access.is_own_host(headers.get(b"host", b"").decode("latin-1"), self._names):
            return 421, "this server is not known by that name"
        if self._working >= MAX_REQUESTS:
            return 503, f"more than {MAX_REQUESTS} requests are being answered"
        return None


class ViewsServer:
    """Answers from `start` to `stop`."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str, requests: RequestMetrics) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                AccessGuard(app, token, [host], requests),
                host=host,
                port=port,
                http=BoundedConnection,
                ws="none",
                loop="uvloop",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                backlog=MAX_CONNECTIONS,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=2,
            )
        )
        self._address = f"{host}:{port}"
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """HostError if the port cannot be had."""
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise HostError(
                    "the views cannot be served",
                    got=self._address,
                    hint="see the log; if another process has the port, set PENSTOCK_VIEWS_PORT",
                )
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10.0)

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:
            # It says in the log why, and leaves so that a process would end.
            log.error("the HTTP server ended")


def token_of(host: str) -> str:
    """What callers must send; empty if they need not. SettingError if all the world could ask."""
    file = settings().home / "views.token"
    token = settings().secret("views_token").strip()
    if not token and file.exists():
        token = file.read_text().strip()
    if not token and not access.is_loopback(host):
        raise SettingError(
            "the views are not served to other hosts without a token",
            got=f"PENSTOCK_VIEWS_HOST={host}",
            hint=f"set PENSTOCK_VIEWS_TOKEN, or write one into {file}",
        )
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingError("the token of the views is not usable", hint="take letters, digits and signs without spaces")
    return token
