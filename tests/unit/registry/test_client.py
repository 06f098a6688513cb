"""What the client makes of answers that a registry gives seldom, and of servers that are none."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from penstock.errors import RegistryError, UnknownSchema
from penstock.host.ports import free_port
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from tests.chaos.projects import other_project
from tests.support.certificates import Authority
from tests.support.schema_registry import close_clients

pytestmark = pytest.mark.processes

TEXT = '{"schema": "\\"string\\""}'


class Registry:
    """Gives the answers, as status and body, in order; then the last one for ever."""

    def __init__(self, *answers: tuple[int, str], context: ssl.SSLContext | None = None) -> None:
        left, self.logins = deque(answers), list[str]()
        logins = self.logins

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                logins.append(base64.b64decode(self.headers.get("Authorization", "").partition(" ")[2]).decode())
                status, body = left.popleft() if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(client, "RETRY_MS", 1)
    yield
    close_clients()


def ask(place: str, folder: Path, **variables: object) -> str:
    url = place if "://" in place else f"http://u:hidden@{place}"
    with other_project(folder, {"PENSTOCK_HOME": folder, "PENSTOCK_SCHEMA_REGISTRY_URL": url, **variables}):
        return client.schema_of(7).text


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, '{"message": "who?"}', r"refuses schema 7; got: status 401: who\?; hint: check user and password"),
        (403, "", "refuses schema 7; got: status 403.*; hint: check user and password"),
        (404, "<html>no such page</html>", "got: status 404.*no such page.*; hint: check the path"),
        (404, '{"error_code": 404, "message": "HTTP 404 Not Found"}', "Not Found; hint: check the path"),
        (200, "<html>sign in</html>", "does not answer, so schema 7 is not known; got: JSONDecodeError"),
        (503, '{"error_code": 503, "message": "later"}', "status 503: later"),
    ],
)
def test_an_answer_that_says_no_is_no_unknown_schema(status: int, body: str, said: str, tmp_path: Path) -> None:
    """An unknown schema makes a dead letter, and a server that is wrong or busy must not."""
    with Registry((status, body)) as registry, pytest.raises(RegistryError, match=said) as e:
        ask(registry.place, tmp_path)
    assert "hidden" not in str(e.value)
    assert set(registry.logins) == {"u:hidden"}
    assert len(registry.logins) == (client.RETRIES + 1 if status == 503 else 1)


def test_a_busy_registry_is_asked_again_and_the_next_one_where_one_is_down(tmp_path: Path) -> None:
    with Registry((500, ""), (429, ""), (200, TEXT)) as registry:
        down = f"http://u:p@127.0.0.1:{free_port()}"
        assert ask(f"{down},http://{registry.place}", tmp_path) == '"string"'
    with Registry((404, '{"error_code": 40403, "message": "none"}')) as registry:
        with pytest.raises(UnknownSchema, match="no schema of id 7; hint: find out who writes"):
            ask(registry.place, tmp_path)


def test_versions_of_another_format_are_left_out(tmp_path: Path) -> None:
    one = {"subject": "s", "schema": TEXT}
    versions = [(1, {**one, "id": 7, "schemaType": "JSON"}), (2, {**one, "id": 8}), (3, {**one, "id": 9})]
    answers = [(200, json.dumps({**version, "version": number})) for number, version in versions]
    with Registry((200, "[1, 2, 3]"), *answers) as registry:
        url = f"http://{registry.place}"
        with other_project(tmp_path, {"PENSTOCK_HOME": tmp_path, "PENSTOCK_SCHEMA_REGISTRY_URL": url}):
            assert list(client.subject_schemas("s", "AVRO")) == [8, 9]


def test_a_certificate_is_checked_by_the_ca_of_the_settings_or_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = Authority(tmp_path, "right"), Authority(tmp_path, "wrong")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*right.issue("registry"))
    with Registry((200, TEXT), context=context) as registry:
        url = f"https://{registry.place}"
        assert ask(url, tmp_path, PENSTOCK_SCHEMA_REGISTRY_CA=right.ca) == '"string"'
        for ca in (wrong.ca, ""):
            with pytest.raises(RegistryError, match=r"certificate verify failed.*PENSTOCK_SCHEMA_REGISTRY_CA"):
                ask(url, tmp_path, PENSTOCK_SCHEMA_REGISTRY_CA=ca)
        close_clients()
        monkeypatch.setenv("SSL_CERT_FILE", str(right.ca))
        assert ask(url, tmp_path) == '"string"'


FORK = """
import os
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
mine = client._shared_client(RegistryEndpoint("http://h"))
if pid := os.fork():
    os.waitpid(pid, 0)
print(mine is client._shared_client(RegistryEndpoint("http://h")), flush=True)
"""


def test_a_forked_process_has_connections_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_text_of_a_schema_is_the_same_however_its_json_is_formatted() -> None:
    compact = client._schema('{"type":"string","doc":"ü","default":"a b"}', "AVRO")
    assert client._schema('{\n  "type": "string", "doc": "\\u00fc",\n  "default": "a b"}', "AVRO") == compact
    for kind, text in (("PROTOBUF", "message A { int32 a = 1; }"), ("AVRO", "{no json")):
        assert client._schema(text, kind).schema_str == text


def test_a_client_of_another_registry_is_another() -> None:
    endpoint = RegistryEndpoint.parse("http://u:p@h")
    assert client._shared_client(endpoint) is client._shared_client(RegistryEndpoint.parse("http://u:p@h"))
    assert client._shared_client(endpoint) is not client._shared_client(RegistryEndpoint.parse("http://u:q@h"))
