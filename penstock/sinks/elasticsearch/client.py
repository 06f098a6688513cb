"""The client of an Elasticsearch, and what its refusals mean."""

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

VARIABLE = "PENSTOCK_ELASTICSEARCH_URL"
# A request that takes longer is taken for lost; to write it again changes nothing.
TIMEOUT = 30.0
# How long the server itself may wait for a shard, before it says that it has none.
PATIENCE = "10s"
BUSY = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
# Of conditions that somebody has put an index into.
FIXES = {
    "cluster_block_exception": "when it may be written to again, unset the block in its settings (index.blocks.*, or "
    "cluster.blocks.* of the cluster's); the batch is written again",
    "index_closed_exception": "open the index (POST <index>/_open); the batch is written again",
}
ACCOUNT = f"see that the user and password in {VARIABLE} may do that, and start the driver anew"


def connect(url: str) -> Elasticsearch:
    """A client; it asks nothing yet. SinkError, which keeps what may be a password to itself, if it is no URL."""
    # It tells of every request, and warns of each that fails; so does whoever makes them.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
    # As the machine trusts, and SSL_CERT_FILE says; by itself it knows public authorities only.
    secure: dict[str, Any] = {"ssl_context": ssl.create_default_context()} if url.startswith("https:") else {}
    try:
        return Elasticsearch(url, request_timeout=TIMEOUT, max_retries=0, retry_on_timeout=False, **secure)
    except ValueError:
        raise SinkError(
            f"{VARIABLE} is no URL of an Elasticsearch",
            hint="write it as http://user:password@host:9200, in the password %2F for /, %3F for ?, %23 for # and %40 "
            "for @",
        ) from None


@contextmanager
def asking(what: str) -> Iterator[None]:
    """The client's errors as the platform's: Wait if it is away or has too much to do, else SinkError."""
    try:
        with reaching():
            yield
    except ApiError as e:
        raise meant(what, e.status_code, e.body) from e


@contextmanager
def reaching() -> Iterator[None]:
    """As `asking`, but for what the server itself says against a request."""
    try:
        yield
    except UnsupportedProductError as e:
        raise SinkError("what answers is no Elasticsearch", got=str(e)[:200], hint=f"set {VARIABLE} to one") from e
    except TlsError as e:
        raise SinkError(
            "Elasticsearch's certificate is not trusted",
            got=e.message[:300],
            hint="let SSL_CERT_FILE name its authority",
        ) from e
    except SerializationError as e:
        raise SinkError("what answers is no Elasticsearch", got=e.message[:300], hint=f"set {VARIABLE} to one") from e
    except TransportError as e:
        raise Wait("Elasticsearch does not answer", got=e.message[:300], seconds=1.0) from e


def found(client: Elasticsearch, what: str, answer: str, **wanted: Any) -> list[dict[str, Any]]:
    """Documents by their ids, as they are now. answer: fields of each that are told; one without any is left out, and
    one without its index has none but an `error`. Wait if one cannot be read, which is not to say that it is not
    there."""
    with asking(what):
        docs = client.mget(**wanted, filter_path=f"{answer},docs.error.type").get("docs", [])
    for doc in docs:
        error = doc.get("error", {}).get("type", "index_not_found_exception")
        if error != "index_not_found_exception":
            raise Wait(f"Elasticsearch is not able {what}", got=error, seconds=1.0)
    return list(docs)


def meant(what: str, status: int, body: object) -> PenstockError:
    """What an answer means for which the documents are not to blame."""
    said = f"{status} {reason(error_of(body)) or str(body)[:300]}"
    if status in BUSY:
        return Wait("Elasticsearch asks to wait", got=said, seconds=1.0)
    if hint := FIXES.get(error_of(body).get("type", "")):
        return SinkError(f"Elasticsearch refused {what}", got=said, hint=hint)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return SinkError(f"Elasticsearch forbids {what}", got=said, hint=ACCOUNT)
    return SinkError(f"Elasticsearch refused {what}", got=said, hint="see its message; the batch is written again")


def error_of(body: object) -> Mapping[str, Any]:
    error = body.get("error") if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def reason(error: Mapping[str, Any]) -> str:
    """An error with what caused it, in one line."""
    said: list[str] = []
    cause: Any = error
    while isinstance(cause, Mapping) and len(said) < 4:
        said.append(f"{cause.get('type', '')}: {cause.get('reason') or ''}".strip(": "))
        cause = cause.get("caused_by")
    return "; ".join(dict.fromkeys(part for part in said if part))[:500]
