"""The client of an Elasticsearch, and what its errors mean."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from elastic_transport import SerializationError, TlsError, TransportError
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError

from penstock.errors import PenstockError, SinkError, Wait

URL_SETTING = "PENSTOCK_ELASTICSEARCH_URL"
# A request that takes longer counts as lost; writing it again changes nothing.
TIMEOUT_S = 30.0
# How long the server may wait for a shard.
SHARD_TIMEOUT = "10s"
# Out of time, too many requests, and the answers of a server or proxy that is starting or away.
BUSY = frozenset({408, 429, 502, 503, 504})
NOT_ELASTICSEARCH = ("the server is not an Elasticsearch", f"set {URL_SETTING}, or its Connection, to one")
# Errors of the client that do not pass by themselves, with their hints.
CLIENT_ERRORS = {
    UnsupportedProductError: NOT_ELASTICSEARCH,
    SerializationError: NOT_ELASTICSEARCH,
    TlsError: ("Elasticsearch's certificate is not trusted", "let SSL_CERT_FILE name its authority"),
}
NO_TLS_HINT = "write http instead of https, or another port"
# For states that somebody has put an index into.
HINTS = {
    "cluster_block_exception": "when it may be written to again, unset the block in its settings (index.blocks.*, or "
    "cluster.blocks.* of the cluster's); the batch is written again",
    "index_closed_exception": "open the index (POST <index>/_open); the batch is written again",
}
ACCOUNT_HINT = f"check that the user and password in {URL_SETTING} may do that, and restart the driver"


def connect(url: str) -> Elasticsearch:
    """A client; it sends nothing yet. SinkError, without what may be a password, if the URL is malformed."""
    # It logs every request and every failure; so do the callers.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
    # Trusts the machine's authorities and SSL_CERT_FILE; by default the client knows public authorities only.
    secure: dict[str, Any] = {"ssl_context": ssl.create_default_context()} if url.startswith("https:") else {}
    try:
        return Elasticsearch(url, request_timeout=TIMEOUT_S, max_retries=0, retry_on_timeout=False, **secure)
    except ValueError:
        raise SinkError(
            f"{URL_SETTING} is not a valid URL",
            hint="write it as http://user:password@host:9200, in the password %2F for /, %3F for ?, %23 for # and %40 "
            "for @",
        ) from None


@contextmanager
def request_errors(what: str) -> Iterator[None]:
    """Turns the client's errors into Wait, if the server is away or busy, or else SinkError. what: was asked."""
    try:
        with transport_errors():
            yield
    except ApiError as e:
        raise error_for_status(what, e.status_code, e.body) from e


@contextmanager
def transport_errors() -> Iterator[None]:
    """As `request_errors`, but lets through what the server itself answers."""
    try:
        yield
    except (UnsupportedProductError, TransportError) as e:
        if "WRONG_VERSION_NUMBER" in e.message:
            raise SinkError("Elasticsearch does not use TLS at this port", got=e.message[:300], hint=NO_TLS_HINT) from e
        for kind, (what, hint) in CLIENT_ERRORS.items():
            if isinstance(e, kind):
                raise SinkError(what, got=e.message[:300], hint=hint) from e
        raise Wait("Elasticsearch does not answer", got=e.message[:300], seconds=1.0) from e


def get_documents(client: Elasticsearch, what: str, answer: str, **wanted: Any) -> list[dict[str, Any]]:
    """Documents by their ids.

    Args:
        client: of the server.
        what: is asked, for errors.
        answer: the fields of each that are returned. A document that has none of them is left out; one whose index does
            not exist has an `error`.
        wanted: parameters of the request.

    Raises:
        Wait: a document cannot be read, which does not mean that it does not exist.
    """
    with request_errors(what):
        docs = client.mget(**wanted, filter_path=f"{answer},docs.error.type").get("docs", [])
    for doc in docs:
        error = doc.get("error", {}).get("type", "index_not_found_exception")
        if error != "index_not_found_exception":
            raise Wait(f"Elasticsearch is not able {what}", got=error, seconds=1.0)
    return list(docs)


def error_for_status(what: str, status: int, body: object) -> PenstockError:
    """The error for an answer of which no document is the cause."""
    error = error_body(body)
    answer = f"{status} {error_reason(error) or str(body)[:300]}"
    if status in BUSY:
        return Wait("Elasticsearch asks to wait", got=answer, seconds=1.0)
    hint = HINTS.get(error.get("type", ""))
    if not hint and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return SinkError(f"Elasticsearch forbids {what}", got=answer, hint=ACCOUNT_HINT)
    hint = hint or "see its message; the batch is written again"
    return SinkError(f"Elasticsearch refused {what}", got=answer, hint=hint)


def error_body(body: object) -> Mapping[str, Any]:
    error = body.get("error") if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def error_reason(error: Mapping[str, Any]) -> str:
    """An error with its causes, in one line."""
    reasons: list[str] = []
    cause: Any = error
    while isinstance(cause, Mapping) and len(reasons) < 4:
        reasons.append(f"{cause.get('type', '')}: {cause.get('reason') or ''}".strip(": "))
        cause = cause.get("caused_by")
    return "; ".join(dict.fromkeys(part for part in reasons if part))[:500]
