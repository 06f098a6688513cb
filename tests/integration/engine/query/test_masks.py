"""What masks make of values, in Spark: as Python's HMAC and AES make it, and without a key in any plan."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro

from penstock.engine.query.written_values import written_columns
from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.mask_expressions import masked_columns, masked_rows
from penstock.model.spark_hmac import hmac_pads
from penstock.registry import client
from penstock.settings import settings
from penstock.streams import Mask, Topic, TopicOutput

pytestmark = pytest.mark.integration

KEYS = {"pii": bytes(range(100, 132)), "long": bytes(range(150)), "aes-128": b"0123456789abcdef"}
LONG = "x" * 1000
SCHEMA = (
    "text STRING, n INT, x DOUBLE, at TIMESTAMP, raw BINARY, c STRUCT<d: STRING, s: STRUCT<e: INT, f: STRING>>, "
    "list ARRAY<INT>"
)
AT = datetime(2026, 1, 31, 23, 59, 59, 500_000, tzinfo=UTC)
ROWS: list[tuple[Any, ...]] = [
    ("a@x", 1, 1.5, AT, b"\0\xff", ("q", (2, "f")), [1]),
    ("", -1, float("nan"), None, b"", (None, (None, None)), []),
    (None, None, None, None, None, None, None),
    (LONG, 1, 1.5, None, None, ("a@x", None), None),
]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    texts = {name: base64.b64encode(key).decode() for name, key in KEYS.items()}
    monkeypatch.setenv("PENSTOCK_MASK_KEYS", json.dumps(texts))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, SCHEMA).coalesce(1)


def digest(text: str | bytes, key: str = "pii") -> bytes:
    return hmac.digest(KEYS[key], text.encode() if isinstance(text, str) else text, hashlib.sha256)


def test_a_hash_is_the_hmac_of_the_text(rows: DataFrame) -> None:
    names = ("text", "n", "x", "at", "raw", "list", "C.D")
    masks = [*(Mask(name, "hashed", "pii") for name in names), Mask("c.s", "hashed", "long")]
    first, empty, null, last = masked_rows(rows, masks).collect()
    texts = {"text": "a@x", "n": "1", "x": "1.5", "at": "2026-01-31 23:59:59.5", "list": "[1]"}
    assert {name: first[name] for name in texts} == {name: digest(text).hex() for name, text in texts.items()}
    assert (bytes(first.raw), first.c.d) == (digest(b"\0\xff"), digest("q").hex())
    assert first.c.s == digest('{"e":2,"f":"f"}', "long").hex()
    assert (empty.text, bytes(empty.raw), empty.at, empty.c.d) == (digest("").hex(), digest(b""), None, None)
    assert [*null] == [None] * 7
    # Equal values have equal hashes, in whatever column: joins work.
    assert (last.c.d, last.n) == (first.text, first.n)


def test_a_ciphertext_is_decrypted_by_spark_and_by_others(rows: DataFrame) -> None:
    masks = [
        Mask("text", "encrypted", "pii"), Mask("n", "encrypted", "aes-128"), Mask("raw", "encrypted", "pii"),
        Mask("c.s.e", "encrypted", "pii"), Mask("at", "dropped"), Mask("c.d", "dropped"),
    ]  # fmt: skip
    masked = masked_rows(rows, masks)
    assert masked.columns == ["text", "n", "x", "raw", "c", "list"]
    assert [field.name for field in masked.schema["c"].dataType.fields] == ["s"]  # type: ignore[attr-defined]
    found = masked.collect()
    again = masked_rows(rows.repartition(2), masks).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, again))
    for row, text in zip(found, ("a@x", "", None, LONG), strict=True):
        assert (row.text is None) == (text is None)
        if text is not None:
            data = base64.b64decode(row.text, validate=True)
            assert AESGCM(KEYS["pii"]).decrypt(data[:12], data[12:], None) == text.encode()
    n, raw = "string(aes_decrypt(unbase64(:n), unbase64(:key), 'GCM'))", "aes_decrypt(:raw, unbase64(:other), 'GCM')"
    keys = {"key": base64.b64encode(KEYS["aes-128"]).decode(), "other": base64.b64encode(KEYS["pii"]).decode()}
    given = {"n": found[0].n, "raw": found[0].raw, **keys}
    [plain] = rows.sparkSession.sql(f"SELECT {n} AS n, {raw} AS raw", given).collect()
    assert (plain.n, bytes(plain.raw)) == ("1", b"\0\xff")
    assert found[3].n == found[0].n
    assert len({found[0].text, found[0].n, found[1].text, found[1].n, found[0].c.s.e}) == 5


@pytest.mark.parametrize(
    ("mask", "what"),
    [
        (Mask("gone", "dropped"), "there is no such column.*take one of: text, n"),
        (Mask("c.gone", "hashed", "pii"), "there is no such field.*take one of: d, s"),
        (Mask("list.element", "hashed", "pii"), "list is no struct: array<int>.*mask the whole column"),
        (Mask("text.x", "dropped"), "text is no struct: string"),
    ],
)
def test_a_column_that_cannot_be_masked_is_refused_where_it_is_declared(rows: DataFrame, mask: Mask, what: str) -> None:
    with pytest.raises(DeclarationError, match=f"test_masks.py:[0-9]+: the mask of {mask.column}: {what}"):
        masked_columns(rows, (mask,))


def test_the_only_field_of_a_struct_is_not_dropped(spark: SparkSession) -> None:
    with pytest.raises(DeclarationError, match=r"it is the only field of its struct.*drop the struct"):
        masked_columns(spark.sql("SELECT struct(1 AS a) AS c"), (Mask("c.a", "dropped"),))


def test_values_of_avro_are_masked_too(spark: SparkSession, rows: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": n, "type": ["null", "string"]} for n in ("text", "n")]}
    )
    monkeypatch.setattr(client, "registered_id", lambda *_: 7)
    masks = (Mask("text", "hashed", "pii"), Mask("n", "encrypted", "pii"))
    schema = Avro(text)
    output = TopicOutput(Topic("t", schema=schema), key="text", value=("text", "n"), mask=masks)
    encoded = rows.select(*written_columns(rows, output, schema, masked_columns(rows, masks)))
    first = encoded.first()
    assert first is not None
    assert first.key.decode() == digest("a@x").hex()
    [value] = spark.createDataFrame([(first.value[5:],)], "v BINARY").select(from_avro("v", text).alias("v")).collect()
    assert value.v.text == digest("a@x").hex()
    data = base64.b64decode(value.v.n, validate=True)
    assert AESGCM(KEYS["pii"]).decrypt(data[:12], data[12:], None) == b"1"


def shown_forms(secret: bytes) -> list[str]:
    """How a plan might show a key."""
    forms = (secret.hex(), base64.b64encode(secret).decode(), str(list(secret))[1:-1], repr(secret)[2:-1])
    return [form[:24].lower() for form in (*forms, str([b - 256 * (b > 127) for b in secret])[1:-1])]


def test_no_plan_shows_a_key(rows: DataFrame) -> None:
    masks = [Mask("text", "hashed", "long"), Mask("n", "encrypted", "pii"), Mask("c.d", "hashed", "pii")]
    masked = masked_rows(rows, masks)
    masked.collect()
    modes: Any = rows.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]
    execution = masked._jdf.queryExecution()
    names = ("extended", "codegen", "cost", "formatted")
    shown = [str(execution.explainString(modes.fromString(name))) for name in names]
    # Spark's UI and its event log have these texts.
    store = rows.sparkSession._jsparkSession.sharedState().statusStore()
    last = store.executionsList(max(store.executionsCount() - 3, 0), 3)
    shown += [str(last.apply(number).physicalPlanDescription()) for number in range(last.size())]
    assert "sha2" in shown[0]
    assert any("sha2" in text for text in shown[len(names) :])
    nonce_keys = [hmac.digest(key, b"penstock mask nonce", hashlib.sha256) for key in KEYS.values()]
    pads = [pad for key in (*KEYS.values(), *nonce_keys) for pad in hmac_pads(key)]
    for secret in (*KEYS.values(), *nonce_keys, *pads):
        assert not [form for form in shown_forms(secret) for text in shown if form in text.lower()]
