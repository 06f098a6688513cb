"""SQL of the reason why a record is invalid."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.json_sql import field_text, is_field_invalid, is_json, is_object, literal, quote_name
from penstock.model.schema import Field

VALUE_CHARS = 60


def rejection_reason(fields: Sequence[Field], event_time: str, *, tombstones: bool = False) -> str:
    """VARCHAR: the first reason why a decoded record is invalid; with `tombstones` a missing value is none."""
    excerpt = f"CASE WHEN length(_text) > {VALUE_CHARS} THEN substr(_text, 1, {VALUE_CHARS}) || '…' ELSE _text END"
    cases = [
        ("_value IS NULL", "'the record has no value'"),
        ("_text IS NULL", "'not valid UTF-8'"),
        (f"NOT {is_json('_text')}", f"'not valid JSON: ' || {excerpt}"),
        (f"NOT {is_object('_text')}", f"'not a JSON object: ' || {excerpt}"),
    ]
    for field in fields:
        text, value = field_text("_k", field, "_text"), quote_name(field.name)
        if field.required:
            cases.append((f"{text} IS NULL", literal(f"field {field.name} is missing or null")))
        said = f"CASE WHEN starts_with({text}, '\"') THEN json_extract_string({text}, '$') ELSE {text} END"
        prefix = literal(f"field {field.name} is no {field.type}: ")
        cases.append((is_field_invalid("_k", field, value, "_text"), f"{prefix} || substr({said}, 1, {VALUE_CHARS})"))
    if tombstones:
        cases = [(f"_value IS NOT NULL AND ({test})", said) for test, said in cases]
    cases.append(("_at IS NULL", literal(f"no event time: {event_time} gives none")))
    branches = " ".join(f"WHEN {test} THEN {said}" for test, said in cases)
    in_future = "'the event time lies in the future: ' || make_timestamp(_at)::VARCHAR"
    return f"CASE {branches} ELSE {in_future} END"
