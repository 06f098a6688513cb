"""Why a record is none, in words."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.json_sql import amiss, is_json, is_object, literal, name, text_in
from penstock.model.schema import Field

SHOWN = 60


def reason(fields: Sequence[Field], event_time: str, *, tombstones: bool = False) -> str:
    """VARCHAR: the first thing that is wrong with a decoded record that is bad. tombstones: to have no value is not."""
    shown = f"CASE WHEN length(_text) > {SHOWN} THEN substr(_text, 1, {SHOWN}) || '…' ELSE _text END"
    cases = [
        ("_value IS NULL", "'the record has no value'"),
        ("_text IS NULL", "'not valid UTF-8'"),
        (f"NOT {is_json('_text')}", f"'not valid JSON: ' || {shown}"),
        (f"NOT {is_object('_text')}", f"'not a JSON object: ' || {shown}"),
    ]
    for field in fields:
        text, found = text_in("_k", field, "_text"), name(field.name)
        if field.required:
            cases.append((f"{text} IS NULL", literal(f"field {field.name} is missing or null")))
        said = f"CASE WHEN starts_with({text}, '\"') THEN json_extract_string({text}, '$') ELSE {text} END"
        no = literal(f"field {field.name} is no {field.type}: ")
        cases.append((amiss("_k", field, found, "_text"), f"{no} || substr({said}, 1, {SHOWN})"))
    if tombstones:
        cases = [(f"_value IS NOT NULL AND ({test})", said) for test, said in cases]
    cases.append(("_at IS NULL", literal(f"no event time: {event_time} gives none")))
    when = " ".join(f"WHEN {test} THEN {said}" for test, said in cases)
    ahead = "'the event time lies in the future: ' || make_timestamp(_at)::VARCHAR"
    return f"CASE {when} ELSE {ahead} END"
