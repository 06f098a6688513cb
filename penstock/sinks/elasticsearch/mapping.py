"""The mapping of an index: as a sink's columns ask for it, and how that differs from the one that is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from penstock.errors import DeclarationError
from penstock.sinks.core.spark_types import own_kind
from penstock.sinks.elasticsearch.config import Elasticsearch

Properties = dict[str, Any]

# What a document cannot have at its top, as Elasticsearch itself keeps something under that name.
METADATA = {
    "_id", "_index", "_source", "_routing", "_version", "_seq_no", "_field_names", "_ignored", "_ignored_source",
    "_nested_path", "_doc_count", "_tier", "_type", "_tsid", "_ts_routing_hash", "_feature", "_data_stream_timestamp",
}  # fmt: skip
# A term of Lucene holds 32766 bytes, a sign up to four of them.
KEYWORD = 8191
# Text is searched by its words, and by `<field>.keyword` as a whole, as Elasticsearch does by itself.
TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": KEYWORD}}}
SIMPLE = (
    (kinds.is_boolean, "boolean"),
    (kinds.is_int8, "byte"),
    (kinds.is_int16, "short"),
    (kinds.is_int32, "integer"),
    (kinds.is_int64, "long"),
    (kinds.is_float32, "float"),
    (kinds.is_floating, "double"),
    # It has no decimals: the document keeps all digits, searches and sums see a double.
    (kinds.is_decimal, "double"),
    (kinds.is_date, "date"),
    (kinds.is_timestamp, "date"),
    (kinds.is_binary, "binary"),
    (kinds.is_large_binary, "binary"),
)


def mapping(shape: pa.StructType, output: Elasticsearch) -> dict[str, Any]:
    """The mapping for documents of a shape. DeclarationError if a field has no name, or FIELDS names one that is not
    there."""
    if taken := [field.name for field in shape if field.name.split(".")[0] in METADATA]:
        raise DeclarationError(
            f"a field of {output.name} has a name that is Elasticsearch's own",
            got=taken[0],
            hint="name it otherwise: AS",
        )
    found = _properties(shape, output)
    for name, kind in output.fields:
        parent, _, last = name.rpartition(".")
        place = _place(found, parent)
        if place is None or last not in place:
            raise DeclarationError(
                f"FIELDS of {output.name} names a field that is no column",
                got=name,
                hint=f"name one of: {', '.join(list(found)[:20])}",
            )
        kept = {"properties": place[last]["properties"]} if "properties" in place[last] else {}
        place[last] = kept | output.told(name, kind)
    # What no column names is kept and not searched: no record can make fields.
    return {"dynamic": "false", "properties": found}


def _properties(shape: pa.StructType, output: Elasticsearch) -> Properties:
    found: Properties = {}
    for field in shape:
        names = field.name.split(".")
        if not all(map(str.strip, names)):
            raise DeclarationError(
                f"a field of {output.name} has a name that Elasticsearch does not take",
                got=repr(field.name),
                hint="name it otherwise: dots stand between names, as in a.b",
            )
        made = _mapped(field, output)
        for name in reversed(names[1:]):
            made = {"properties": {name: made}}
        if not _merged(found, {names[0]: made}):
            raise DeclarationError(
                f"two fields of {output.name} are one for Elasticsearch",
                got=repr(field.name),
                hint="name one otherwise: a.b is b within a",
            )
    return found


def _merged(found: Properties, more: Properties) -> bool:
    """Whether fields could be added: of two with one name both must hold others."""
    for name, made in more.items():
        if name not in found:
            found[name] = made
            continue
        inner = [each["properties"] for each in (found[name], made) if each.keys() == {"properties"}]
        if len(inner) < 2 or not _merged(*inner):
            return False
    return True


def _mapped(field: pa.Field[Any], output: Elasticsearch) -> dict[str, Any]:
    kind = field.type
    own = own_kind(kind)
    if own == "VARIANT":
        # Whatever a record has there: kept and not searched.
        return {"type": "object", "enabled": False}
    if own:
        hint = "make it text, as by hex(st_asbinary(...))"
        raise DeclarationError(f"a field of {output.name} has no JSON", got=f"{field.name} {own}", hint=hint)
    if kinds.is_struct(kind):
        return {"properties": _properties(kind, output)}
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _mapped(kind.value_field, output)
    if kinds.is_map(kind):
        _keyed(field.name, kind, output)
        # One field for all keys, whatever they are called and however many there are.
        return {"type": "flattened", "ignore_above": KEYWORD}
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return dict(TEXT)
    return {"type": next((name for fits, name in SIMPLE if fits(kind)), "keyword")}


def _keyed(name: str, kind: pa.DataType, output: Elasticsearch) -> None:
    """DeclarationError where a map has keys that Spark's JSON has no text of: a date is the days since 1970 there."""
    if kinds.is_map(kind):
        if not (kinds.is_string(kind.key_type) or kinds.is_integer(kind.key_type) or kinds.is_boolean(kind.key_type)):
            raise DeclarationError(
                f"a map of {output.name} has keys that are no text",
                got=f"{name}, by {kind.key_type}",
                hint="make them text: transform_keys(m, (k, v) -> string(k))",
            )
        _keyed(name, kind.item_type, output)
    elif kinds.is_struct(kind):
        for field in kind:
            _keyed(f"{name}.{field.name}", field.type, output)
    elif kinds.is_list(kind):
        _keyed(name, kind.value_type, output)


def _place(properties: Properties, path: str) -> Properties | None:
    found: Properties | None = properties
    for name in path.split(".") if path else ():
        found = found.get(name, {}).get("properties") if found else None
    return found


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[Properties, list[str]]:
    """What to add to the properties that are there, and what differs, in words; what is not declared may be there."""
    missing: Properties = {}
    wrong: list[str] = []
    for name, want in wanted.items():
        have = there.get(name)
        if have is None:
            missing[name] = want
            continue
        wrong += [f"{name} {said}" for said in _differing(have, want)]
        for part in ("properties", "fields"):
            more, worse = differences(have.get(part, {}), want.get(part, {}))
            if more:
                missing.setdefault(name, {k: v for k, v in have.items() if k not in ("properties", "fields")})
                missing[name][part] = more
            wrong += [f"{name}.{said}" for said in worse]
    return missing, wrong


def _differing(have: Mapping[str, Any], want: Mapping[str, Any]) -> Iterator[str]:
    for key, value in {"type": "object", **want}.items():
        if key in ("properties", "fields"):
            continue
        found = have.get(key, "object" if key == "type" else None)
        # It answers with text where it was given a number or a truth.
        if str(found).lower() != str(value).lower():
            yield f"has {key} {found}, declared is {value}"
