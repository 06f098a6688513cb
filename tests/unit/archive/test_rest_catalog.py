"""A REST catalog that does not answer, refuses, or is no catalog. A real one is tried in tests/integration/archive."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ServerError
from requests import ConnectionError as Away

from penstock.archive import catalog, rest_catalog
from penstock.archive.register import register
from penstock.errors import SinkError, Wait
from penstock.settings import settings
from tests.support.http_faults import Fault, Proxy
from tests.support.iceberg_tables import named_catalog
from tests.support.small_archive import archived_rows, batch, local_store, open_writer, output, write_batch

pytestmark = pytest.mark.processes

TO = output()
CONFIG, LIMIT = Fault(200, body='{"defaults": {}, "overrides": {}}'), 0.3


@contextmanager
def opened(url: str, options: dict[str, Any] | None = None) -> Iterator[None]:
    """The settings name a REST catalog within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ICEBERG_CATALOG", url)
        patch.setenv("PENSTOCK_ICEBERG_OPTIONS", json.dumps(options or {}))
        patch.setattr(rest_catalog, "REQUEST_TIMEOUT", LIMIT)
        settings.cache_clear()
        yield
    settings.cache_clear()


def login(kind: str, url: str) -> dict[str, Any]:
    """The options of a login at a server of tokens."""
    if kind == "credential":
        return {"credential": "id:secret", "oauth2-server-uri": url}
    return {"auth": {"type": "oauth2", "oauth2": {"client_id": "id", "client_secret": "s", "token_url": url}}}


@pytest.mark.parametrize("silent", ["catalog", "table", "credential", "oauth2"])
def test_a_server_that_accepts_and_does_not_answer_is_waited_for(silent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody, Proxy("http://127.0.0.1:1", "/v1") as proxy:
        proxy.faults.append(CONFIG)
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        at = url if silent == "catalog" else proxy.url
        with opened(at, login(silent, url) if silent in ("credential", "oauth2") else None):
            if silent == "table":
                catalog.open_catalog().uri = url  # type: ignore[attr-defined]
            began = time.monotonic()
            with pytest.raises(Wait, match="does not answer for"):
                open_writer(TO)
    assert time.monotonic() - began < 20 * LIMIT


def test_a_named_catalog_that_does_not_answer_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with opened(""), named_catalog("other", uri=url), pytest.raises(Wait, match="for catalog other"):
            catalog.open_named("other")


@pytest.mark.parametrize("kind", ["credential", "oauth2"])
def test_a_login_that_is_refused_says_so(kind: str) -> None:
    with Proxy("http://127.0.0.1:1", "/") as proxy:
        proxy.faults += [Fault(401, body='{"error": "invalid_client"}')] * 2
        with opened(proxy.url, login(kind, f"{proxy.url}/token")), pytest.raises(SinkError, match="check the token"):
            catalog.open_catalog()


@pytest.mark.parametrize("kind", ["credential", "oauth2"])
def test_a_login_by_a_server_of_tokens_opens_the_catalog(kind: str) -> None:
    token = Fault(200, body='{"access_token": "t", "token_type": "bearer", "expires_in": 3600}')
    with Proxy("http://127.0.0.1:1", "/") as proxy:
        # The library asks for one for the configuration, and for another one.
        proxy.faults += [token, CONFIG, token]
        with opened(proxy.url, login(kind, f"{proxy.url}/token")):
            catalog.open_catalog()
    sent = [body for path, body in proxy.seen if path == "/token"]
    assert sent
    assert all(b"grant_type=client_credentials" in body for body in sent)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_a_busy_server_is_waited_for(status: int) -> None:
    with Proxy("http://127.0.0.1:1", "/v1") as proxy:
        proxy.faults += [CONFIG, Fault(status, body="<html>")]
        with opened(proxy.url), pytest.raises(Wait, match="does not answer for table"):
            open_writer(TO)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Fault(400), "refuses table"),
        (Fault(403), "check the token or credential in PENSTOCK_ICEBERG_OPTIONS"),
        (Fault(410), "refuses table"),
        (Fault(501), "refuses table"),
        (Fault(200, body="<html>log in</html>"), "does not answer as one for table"),
        (Fault(200, body="{}"), "does not answer as one for table"),
    ],
)
def test_a_server_that_refuses_or_is_no_catalog_is_told(answer: Fault, message: str) -> None:
    with Proxy("http://127.0.0.1:1", "/v1") as proxy:
        proxy.faults += [CONFIG, answer]
        with opened(proxy.url), pytest.raises(SinkError, match=message) as e:
            open_writer(TO)
    assert e.value.hint


@pytest.mark.parametrize("url", ["localhost:8181", "127.0.0.1/catalog", "ftp://localhost"])
def test_what_is_no_url_is_not_waited_for(url: str) -> None:
    with opened(url), pytest.raises(SinkError, match="check PENSTOCK_ICEBERG_CATALOG"):
        catalog.open_catalog()


def test_a_catalog_that_is_away_is_not_taken_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of requests are OSErrors, as those of the store are."""

    def away(*_: Any) -> None:
        raise Away("Connection refused")

    with local_store(tmp_path):
        writer = open_writer(TO)
        for name in ("commit_table", "load_table"):
            with monkeypatch.context() as patch:
                patch.setattr(catalog.ControlCatalog, name, away)
                with pytest.raises(Wait, match="the Iceberg catalog does not answer"):
                    write_batch(writer, TO, batch(0))
        assert write_batch(writer, TO, batch(0)) == 1


def test_a_catalog_that_cannot_read_what_it_names_is_registered_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = catalog.ControlCatalog.load_table, list[str]()

    def load_table(self: catalog.ControlCatalog, identifier: str) -> Any:
        if not failed:
            failed.append(identifier)
            raise ServerError("NotFoundException: Location does not exist")
        return real(self, identifier)

    with local_store(tmp_path):
        write_batch(open_writer(TO), TO, batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(catalog.ControlCatalog, "load_table", load_table)
            register(TO)
        assert len(archived_rows(TO)) == 1


def test_metadata_that_a_server_has_compressed_is_known(tmp_path: Path) -> None:
    with local_store(tmp_path):
        write_batch(open_writer(TO), TO, batch(0, 1))
        for plain in tmp_path.glob("lake/kept/metadata/*.metadata.json"):
            packed = plain.with_name(plain.name.replace(".metadata.json", ".gz.metadata.json"))
            packed.write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
        catalog.open_catalog().drop_table(TO.table)
        with pytest.raises(SinkError, match="has a table that the catalog does not know"):
            open_writer(TO)
        assert register(TO)[0].endswith(".gz.metadata.json")
        assert write_batch(open_writer(TO), TO, batch(1, 2)) == 1
        newest = max(tmp_path.glob("lake/kept/metadata/*.gz.metadata.json"))
        newest.write_bytes(newest.read_bytes()[:-9])
        register(TO)
        assert len(archived_rows(TO)) == 3
