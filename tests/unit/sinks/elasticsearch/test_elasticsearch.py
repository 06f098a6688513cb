"""Elasticsearch sinks: declarations, mappings, and what the server's answers mean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest

from penstock.errors import DeclarationError, PenstockError, SinkError, Wait
from penstock.model.output import WriterOwner
from penstock.settings import settings
from penstock.sinks.core.bulk import BulkOutcome, SinkBatchResult
from penstock.sinks.elasticsearch import bulk as elasticsearch_bulk
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction
from penstock.sinks.elasticsearch.client import connect, get_documents
from penstock.sinks.elasticsearch.indexes import index_template
from penstock.sinks.elasticsearch.mapping import differences, mapping
from penstock.sinks.elasticsearch.tombstones import TombstoneIndex
from penstock.sinks.elasticsearch.writer import IndexWriter
from tests.support.elasticsearch import SHAPE, give, output, row, shaped

pytestmark = pytest.mark.processes

Answer = tuple[int, object]
Answering = Callable[[Callable[[str, bytes], Answer]], str]
OK = {"index": {"status": 201}}


@pytest.fixture
def answering() -> Iterator[Answering]:
    """The URL of a server that gives what a function of path and body says: a status and a body."""
    servers: list[ThreadingHTTPServer] = []

    def of(answer: Callable[[str, bytes], Answer], product: bool = True) -> str:
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                status, said = answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
                body = said if isinstance(said, bytes) else orjson.dumps(said)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "text/html" if isinstance(said, bytes) else "application/json")
                if product:
                    self.send_header("X-Elastic-Product", "Elasticsearch")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield of
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"index": ""}, "is empty"),
        ({"index": "Tests"}, "has 'T' in it"),
        ({"index": "a,b"}, "has ',' in it"),
        ({"index": "_all"}, "begins with"),
        ({"index": "tests-tombstones"}, "ends with -tombstones"),
        ({"index": "x" * 250}, "longer than"),
        ({"index": "tests", "expire_seconds": 60}, "drops whole indexes only"),
        ({"index": "tests", "suffix": "day", "tombstones": "mark"}, "cannot mark"),
        ({"index": "tests", "fields": (("name", "key word"),)}, "field name"),
        ({"index": "tests", "fields": (("name", '{"type": 1'),)}, "field name"),
    ],
)
def test_what_elasticsearch_cannot_do_is_refused_with_the_way_out(more: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as e:
        output(**more)
    assert e.value.hint


def test_the_mapping_follows_the_types_and_what_the_sink_says_of_fields() -> None:
    shape = shaped(
        {
            "flag": pa.bool_(),
            "small": pa.int16(),
            "price": pa.decimal128(20, 2),
            "at": pa.timestamp("us"),
            "at.zone": pa.string(),
        }
    )
    with pytest.raises(DeclarationError, match="two fields"):
        mapping(shape, output("things"))
    inner = shaped({"b": pa.list_(shaped({"c": pa.string()})), "m": pa.map_(pa.string(), pa.int64())})
    shape = pa.struct([*list(shape)[:4], pa.field("a", inner), pa.field("a.x", pa.float32())])
    told = (("price", '{"type": "scaled_float", "scaling_factor": 100}'), ("a.b", "nested"), ("a.b.c", "ip"))
    assert mapping(shape, output("things", fields=told)) == {
        "dynamic": "false",
        "properties": {
            "flag": {"type": "boolean"},
            "small": {"type": "short"},
            "price": {"type": "scaled_float", "scaling_factor": 100},
            "at": {"type": "date"},
            "a": {
                "properties": {
                    "b": {"type": "nested", "properties": {"c": {"type": "ip"}}},
                    "m": {"type": "flattened", "ignore_above": 8191},
                    "x": {"type": "float"},
                }
            },
        },
    }
    with pytest.raises(DeclarationError, match="not a column") as e:
        mapping(shape, output("things", fields=(("a.z", "ip"),)))
    assert e.value.got == "a.z"
    with pytest.raises(DeclarationError, match="does not take"):
        mapping(shaped({"a..b": pa.int64()}), output("things"))


def test_missing_documents_are_distinguished_from_different_ones() -> None:
    there = {"a": {"properties": {"b": {"type": "text", "analyzer": "english"}}}, "n": {"type": "long"}, "own": {}}
    wanted = mapping(shaped({"a": shaped({"b": pa.string(), "c": pa.int64()}), "n": pa.float64()}), output("x"))
    missing, wrong = differences(there, wanted["properties"], {})
    assert wrong == ["n has type long, declared is double"]
    keyword = {"keyword": {"type": "keyword", "ignore_above": 8191}}
    assert missing == {
        "a": {
            "properties": {
                "b": {"type": "text", "analyzer": "english", "fields": keyword},
                "c": {"type": "long"},
            }
        }
    }
    assert differences({"x": {"type": "keyword"}}, {"x": {"properties": {}}}, {})[1] == [
        "x has type keyword, declared is object"
    ]


@pytest.mark.parametrize(
    ("declared", "present", "differs"),
    [
        ({"scaling_factor": 100}, {"scaling_factor": 100.0}, False),
        ({"scaling_factor": 100}, {"scaling_factor": 10.0}, True),
        ({"index": True, "ignore_above": 256}, {"ignore_above": "256"}, False),
        ({"index": False}, {}, True),
        ({"ignore_above": 256}, {}, True),
        ({"copy_to": "all"}, {"copy_to": ["all"]}, False),
        ({"copy_to": ["all", "some"]}, {"copy_to": ["all"]}, True),
        ({"index_prefixes": {"min_chars": 1}}, {"index_prefixes": {"min_chars": 1, "max_chars": 5}}, False),
        ({"index_prefixes": {"max_chars": 4}}, {"index_prefixes": {"min_chars": 2, "max_chars": 5}}, True),
    ],
)
def test_a_mapping_is_compared_as_elasticsearch_answers_it(
    declared: dict[str, Any], present: dict[str, Any], *, differs: bool
) -> None:
    defaults = {"a.b": {"index": True, "ignore_above": 2147483647}}
    have, want = ({"a": {"properties": {"b": {"type": "any", **of}}}} for of in (present, declared))
    assert bool(differences(have, want, defaults)[1]) is differs


def test_an_object_has_its_defaults() -> None:
    have: dict[str, Any] = {"a": {"properties": {}}}
    assert differences(have, {"a": {"type": "object", "enabled": True}}, {})[1] == []
    assert differences(have, {"a": {"type": "object", "enabled": False}}, {})[1] == [
        "a has enabled True, declared is False"
    ]


def test_a_shape_that_no_document_can_have_is_refused() -> None:
    bytes_of = pa.field("wkb", pa.binary(), metadata={b"geometry": b"true", b"srid": b"0"})
    for fields, said in (
        ({"g": pa.list_(pa.struct([bytes_of]))}, "has no JSON; got: .* GEOMETRY"),
        ({"_source": pa.string()}, "a name that is Elasticsearch's own; got: _source"),
    ):
        with pytest.raises(DeclarationError, match=said):
            mapping(shaped(fields), output("tests"))


def test_a_template_is_for_its_own_indexes_and_no_others() -> None:
    assert index_template(output("tests"), SHAPE)["index_patterns"] == ["tests"]
    assert index_template(output("tests", suffix="day"), SHAPE)["index_patterns"] == [
        "tests-19*.*.*",
        "tests-20*.*.*",
        "tests-21*.*.*",
    ]


def run(
    url: str, count: int, restore: Callable[[str], None] = lambda _: None
) -> tuple[SinkBatchResult, BulkOutcome[IndexAction] | PenstockError]:
    """What became of documents, and the outcome or the error of their requests."""
    client = connect(url)
    bulk = ElasticsearchBulk(client, 2, restore)
    result = SinkBatchResult()
    items = [IndexAction(n, "things", str(n), 1, b'{"n":1}') for n in range(count)]
    try:
        return result, bulk.write(items, result)
    except PenstockError as e:
        return result, e
    finally:
        bulk.close()
        client.close()


def failing(status: int, kind: str, **more: object) -> dict[str, object]:
    return {"index": {"status": status, "error": {"type": kind, "reason": f"said {kind}", **more}}}


def ids(body: bytes) -> list[int]:
    return [int(orjson.loads(line)["index"]["_id"]) for line in body.splitlines()[::2]]


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elasticsearch_bulk, "PAUSE_S", 0.001)


@pytest.mark.usefixtures("_quick")
def test_every_items_outcome_is_read(answering: Answering) -> None:
    """Of six items one is older, one poison, one busy twice, one without an index once, two are written."""
    asked: list[list[int]] = []
    restored: list[str] = []

    def answer(_: str, body: bytes) -> Answer:
        asked.append(ids(body))
        by_id = {
            1: failing(409, "version_conflict_engine_exception"),
            2: failing(400, "document_parsing_exception", caused_by={"type": "x", "reason": "not a date"}),
            3: failing(429, "es_rejected_execution_exception") if len(asked) < 3 else OK,
            4: failing(404, "index_not_found_exception") if len(asked) < 2 else OK,
        }
        return 200, {"errors": True, "items": [by_id.get(one, OK) for one in asked[-1]]}

    made, outcome = run(answering(answer), 6, restored.append)
    assert isinstance(outcome, BulkOutcome)
    assert asked == [[0, 1, 2, 3, 4, 5], [3, 4], [3]]
    assert restored == ["things"]
    assert (outcome.written, len(outcome.conflicts), made.retried) == (4, 1, 3)
    assert made.refused == {2: "document_parsing_exception: said document_parsing_exception; x: not a date"}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("healthy", [True, False])
def test_a_document_on_which_a_healthy_server_always_fails_holds_up_no_other(
    answering: Answering, healthy: bool
) -> None:
    def answer(path: str, body: bytes) -> Answer:
        if "_cluster/health" in path:
            return 200, {"timed_out": not healthy}
        written.extend(one for one in ids(body) if one != 1)
        return 200, {"items": [failing(500, "null_pointer_exception") if one == 1 else OK for one in ids(body)]}

    written: list[int] = []
    made, failed = run(answering(answer), 3)
    assert written == [0, 2]
    assert made.refused == ({1: "null_pointer_exception: said null_pointer_exception"} if healthy else {})
    assert isinstance(failed, Wait) is not healthy


@pytest.mark.usefixtures("_quick")
def test_a_too_large_request_is_refused_and_a_busy_server_is_waited_for(answering: Answering) -> None:
    def answer(_: str, body: bytes) -> Answer:
        found = ids(body)
        size = 100 if 4 in found else 10
        said = f"rejected execution [coordinating_operation_bytes={size}, max_coordinating_bytes=50]"
        if 4 in found:
            return 429, {"error": {"type": "es_rejected_execution_exception", "reason": said}, "status": 429}
        return 200, {"items": [OK for _ in found]}

    made, outcome = run(answering(answer), 9)
    assert isinstance(outcome, BulkOutcome)
    assert outcome.written == 8
    assert "max_coordinating_bytes=50" in made.refused[4]
    said = {
        "type": "circuit_breaking_exception",
        "reason": "[parent] Data too large",
        "bytes_wanted": 9,
        "bytes_limit": 10,
    }
    made, failed = run(answering(lambda *_: (429, {"error": said, "status": 429})), 3)
    assert isinstance(failed, Wait)
    assert not made.refused


@pytest.mark.parametrize(
    ("status", "said", "product", "error", "words"),
    [
        (
            401,
            {"error": {"type": "security_exception", "reason": "unable to authenticate"}},
            True,
            SinkError,
            "user and pass",
        ),
        (
            403,
            {"error": {"type": "security_exception", "reason": "unauthorized"}},
            True,
            SinkError,
            "user and password",
        ),
        (200, b"<html>sign in</html>", False, SinkError, "not an Elasticsearch"),
        (200, {"items": []}, True, SinkError, "not an Elasticsearch"),
        (302, b"", False, SinkError, "lasticsearch"),
        (502, b"bad gateway", True, Wait, "Bad Gateway"),
    ],
)
@pytest.mark.usefixtures("_quick")
def test_an_error_without_a_wrong_document_refuses_no_document(
    answering: Callable[..., str], status: int, said: object, product: bool, error: type[PenstockError], words: str
) -> None:
    made, failed = run(answering(lambda *_: (status, said), product), 3)
    assert isinstance(failed, error)
    assert words in str(failed)
    assert not made.refused


def test_a_document_that_cannot_be_read_is_not_taken_for_one_that_is_not_there(answering: Answering) -> None:
    """Else a delete would find nothing to delete, and an older record nothing that is newer."""
    missing = {"error": {"type": "index_not_found_exception"}}
    unknown = {"error": {"type": "no_shard_available_action_exception"}}
    client = connect(answering(lambda *_: (200, {"docs": [{"_id": "a"}, missing]})))
    assert get_documents(client, "to look", "docs._id", index="x", ids=["a", "b"]) == [{"_id": "a"}, missing]
    client.close()
    client = connect(answering(lambda *_: (200, {"docs": [{"_id": "a"}, unknown]})))
    with pytest.raises(Wait, match="no_shard_available"):
        get_documents(client, "to look", "docs._id", index="x", ids=["a", "b"])
    client.close()


def test_waits_for_an_unreachable_server_grow() -> None:
    writer = IndexWriter("http://127.0.0.1:9", output("things"))
    waits = []
    for _ in range(7):
        with pytest.raises(Wait, match="Connection refused") as e:
            give(writer, row("a", 1, {}))
        waits.append(e.value.seconds)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    writer.close()


@pytest.mark.usefixtures("home")
def test_no_url_or_a_wrong_one_says_what_to_set_and_keeps_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = WriterOwner("things", "group", "")
    with pytest.raises(SinkError, match="PENSTOCK_ELASTICSEARCH_URL"):
        IndexWriter.open(owner, [output("things")])
    monkeypatch.setenv("PENSTOCK_ELASTICSEARCH_URL", "http://me:secret/word@host")
    settings.cache_clear()
    with pytest.raises(SinkError, match="not a valid URL") as e:
        IndexWriter.open(owner, [output("things")])
    assert "secret" not in str(e.value)


def test_an_index_of_tombstones_that_is_not_there_costs_one_small_request() -> None:
    asked: list[str] = []

    def exists(*, index: str) -> bool:
        asked.append(index)
        return False

    client: Any = SimpleNamespace(indices=SimpleNamespace(exists=exists))
    tombstones = TombstoneIndex(client, cast(ElasticsearchBulk, None), "things-tombstones", lambda: datetime.now(UTC))
    assert list(tombstones.read([f"{n}" for n in range(10_000)])) == []
    assert asked == ["things-tombstones"]
