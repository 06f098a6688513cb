"""DuckDB SQL that checks decoded records, and says why one is invalid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.codec import json_sql
from penstock.codec.json_sql import literal, quote_name
from penstock.model.types import Field

if TYPE_CHECKING:
    from penstock.codec.columnar import RecordDecoder

IS_HEARTBEAT = "_beat_at IS NOT NULL"
VALUE_CHARS = 60


def validated_sql(decoder: RecordDecoder) -> str:
    """All columns of each record, the values of its fields, its event time, and whether it is invalid."""
    fields = decoder.fields
    if decoder.registry and not decoder.registry.schema.is_json:
        parsed = "_parsed"
        values = {f.name: f"_k.{quote_name(f.name)}" for f in fields}
        checks = ["_k IS NULL"]
    else:
        parsed = json_sql.parse_record("_text", fields)
        values = {f.name: json_sql.field_value("_k", f, "_text") for f in fields}
        checks = ["_error IS NOT NULL"] if decoder.registry else []
        checks += ["_k IS NULL", *(json_sql.is_field_invalid("_k", f, quote_name(f.name), "_text") for f in fields)]
    event_time = decoder.event_time_sql
    time_checks = ["_at IS NULL", "_at > _clock"] if event_time is not None else []
    is_bad = " OR ".join([*checks, *time_checks])
    if decoder.tombstones:
        is_bad = f"CASE WHEN _value IS NULL THEN {' OR '.join(time_checks) or 'false'} ELSE {is_bad} END"
    columns = ", ".join(f"{value} AS {quote_name(name)}" for name, value in values.items())
    return (
        f"SELECT *, NOT _beat AND ({is_bad}) AS _bad FROM ("
        f"SELECT *, CASE WHEN _beat THEN _beat_at ELSE {event_time or 'NULL::BIGINT'} END AS _at FROM ("
        f"SELECT *, {columns} FROM ("
        f"SELECT *, {IS_HEARTBEAT} AS _beat, {parsed} AS _k FROM records_in)))"
    )


def no_event_time(expression: str) -> str:
    """Why a record is invalid whose event time is NULL, in one line."""
    return f"no event time: {' '.join(expression.split())} gives none"


def rejection_reason(decoder: RecordDecoder) -> str:
    """VARCHAR: the first reason why a decoded record is invalid."""
    cases = [("_value IS NULL", "'the record has no value'")]
    if decoder.registry:
        cases.append(("_error IS NOT NULL", "_error"))
    if decoder.registry is None or decoder.registry.schema.is_json:
        cases += _json_reasons(decoder.fields)
    if decoder.tombstones:
        cases = [(f"_value IS NOT NULL AND ({test})", said) for test, said in cases]
    cases.append(("_at IS NULL", literal(no_event_time(decoder.event_time))))
    branches = " ".join(f"WHEN {test} THEN {said}" for test, said in cases)
    in_future = "'the event time lies in the future: ' || make_timestamp(_at)::VARCHAR"
    return f"CASE {branches} ELSE {in_future} END"


def _json_reasons(fields: Sequence[Field]) -> Iterator[tuple[str, str]]:
    excerpt = f"CASE WHEN length(_text) > {VALUE_CHARS} THEN substr(_text, 1, {VALUE_CHARS}) || '…' ELSE _text END"
    yield "_text IS NULL", "'not valid UTF-8'"
    yield f"NOT {json_sql.is_json('_text')}", f"'not valid JSON: ' || {excerpt}"
    yield f"NOT {json_sql.is_object('_text')}", f"'not a JSON object: ' || {excerpt}"
    for field in fields:
        text, value = json_sql.field_text("_k", field, "_text"), quote_name(field.name)
        if field.required:
            yield f"{text} IS NULL", literal(f"field {field.name} is missing or null")
        said = f"CASE WHEN starts_with({text}, '\"') THEN json_extract_string({text}, '$') ELSE {text} END"
        prefix = literal(f"field {field.name} is no {field.type}: ")
        invalid = json_sql.is_field_invalid("_k", field, value, "_text")
        yield invalid, f"{prefix} || substr({said}, 1, {VALUE_CHARS})"
