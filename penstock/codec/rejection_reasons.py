"""SQL of the reason why a record is invalid."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.json_sql import field_text, is_field_invalid, is_json, is_object, literal, quote_name
from penstock.model.schema import Field

VALUE_CHARS = 60


def rejection_reason(fields: Sequence[Field], event_time: str, *, tombstones: bool = False) -> str:
    """VARCHAR: the first thing that is wrong with a decoded record that is bad. tombstones: to have no value is not."""
    shown = f"CASE WHEN length(_text) > {VALUE_CHARS} THEN substr(_text, 1, {VALUE_CHARS}) || '…' ELSE _text END"
    cases = [
        ("_value IS NULL", "'the record has no value'"),
        ("_text IS NULL", "'not valid UTF-8'"),
        (f"NOT {is_json('_text')}", f"'not valid JSON: ' || {shown}"),
        (f"NOT {is_object('_text')}", f"'not a JSON object: ' || {shown}"),
    ]
    for field in fields:
        text, found = field_text("_k", field, "_text"), quote_name(field.name)
        if field.required:
            cases.append((f"{text} IS NULL", literal(f"field {field.name} is missing or null")))
        said = f"CASE WHEN starts_with({text}, '\"') THEN json_extract_string({text}, '$') ELSE {text} END"
        no = literal(f"field {field.name} is no {field.type}: ")
        cases.append((is_field_invalid("_k", field, found, "_text"), f"{no} || substr({said}, 1, {VALUE_CHARS})"))
    if tombstones:
        cases = [(f"_value IS NOT NULL AND ({test})", said) for test, said in cases]
    cases.append(("_at IS NULL", literal(f"no event time: {event_time} gives none")))
    when = " ".join(f"WHEN {test} THEN {said}" for test, said in cases)
    ahead = "'the event time lies in the future: ' || make_timestamp(_at)::VARCHAR"
    return f"CASE {when} ELSE {ahead} END"
