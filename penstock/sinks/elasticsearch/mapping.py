"""The mapping of an index that a sink's columns need, and how it differs from the present one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import DeclarationError
from penstock.sinks.core.spark_types import spark_only_type
from penstock.sinks.elasticsearch.config import Elasticsearch

Properties = dict[str, Any]

# Names that a document cannot have at its top, as Elasticsearch itself uses them.
RESERVED = {
    "_id", "_index", "_source", "_routing", "_version", "_seq_no", "_field_names", "_ignored", "_ignored_source",
    "_nested_path", "_doc_count", "_tier", "_type", "_tsid", "_ts_routing_hash", "_feature", "_data_stream_timestamp",
}  # fmt: skip
# A term of Lucene holds 32766 bytes, a character up to four of them.
KEYWORD_LENGTH = 8191
# Text is searched by its words, and as a whole by `<field>.keyword`, as in Elasticsearch's dynamic mapping.
TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": KEYWORD_LENGTH}}}
# Parameters of objects, which have no others.
OBJECT_DEFAULTS = {"enabled": True, "include_in_parent": False, "include_in_root": False}
SIMPLE_TYPES = (
    (types.is_boolean, "boolean"),
    (types.is_int8, "byte"),
    (types.is_int16, "short"),
    (types.is_int32, "integer"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_floating, "double"),
    # Elasticsearch has no decimals: the document keeps all digits, searches and sums see a double.
    (types.is_decimal, "double"),
    (types.is_date, "date"),
    (types.is_timestamp, "date"),
    (types.is_binary, "binary"),
    (types.is_large_binary, "binary"),
)


def mapping(shape: pa.StructType, output: Elasticsearch) -> dict[str, Any]:
    """The mapping for documents of a type. DeclarationError if a field has no name, or FIELDS names an unknown one."""
    if taken := [field.name for field in shape if field.name.split(".")[0] in RESERVED]:
        raise DeclarationError(
            f"a field of {output.name} has a name that is Elasticsearch's own",
            got=taken[0],
            hint="rename it by AS",
        )
    properties = _properties(shape, output)
    for name, kind in output.fields:
        parent, _, last = name.rpartition(".")
        place = _properties_at(properties, parent)
        if place is None or last not in place:
            raise DeclarationError(
                f"FIELDS of {output.name} names a field that is not a column",
                got=name,
                hint=f"name one of: {', '.join(list(properties)[:20])}",
            )
        inner = {"properties": place[last]["properties"]} if "properties" in place[last] else {}
        place[last] = inner | output.field_mapping(name, kind)
    # Other fields are stored and not searched: no record can add fields to the mapping.
    return {"dynamic": "false", "properties": properties}


def _properties(shape: pa.StructType, output: Elasticsearch) -> Properties:
    properties: Properties = {}
    for field in shape:
        names = field.name.split(".")
        if not all(map(str.strip, names)):
            raise DeclarationError(
                f"a field of {output.name} has a name that Elasticsearch does not take",
                got=repr(field.name),
                hint="rename it: dots separate names, as in a.b",
            )
        mapped = _field_type(field, output)
        for name in reversed(names[1:]):
            mapped = {"properties": {name: mapped}}
        if not _merge(properties, {names[0]: mapped}):
            raise DeclarationError(
                f"two fields of {output.name} are one for Elasticsearch",
                got=repr(field.name),
                hint="rename one: a.b is b within a",
            )
    return properties


def _merge(properties: Properties, more: Properties) -> bool:
    """Add fields; whether it was possible: two fields of one name must both be objects."""
    for name, mapped in more.items():
        if name not in properties:
            properties[name] = mapped
            continue
        inner = [each["properties"] for each in (properties[name], mapped) if each.keys() == {"properties"}]
        if len(inner) < 2 or not _merge(*inner):
            return False
    return True


def _field_type(field: pa.Field[Any], output: Elasticsearch) -> dict[str, Any]:
    kind = field.type
    own = spark_only_type(kind)
    if own == "VARIANT":
        # Stored and not searched, whatever it holds.
        return {"type": "object", "enabled": False}
    if own:
        hint = "make it text, as by hex(st_asbinary(...))"
        raise DeclarationError(f"a field of {output.name} has no JSON", got=f"{field.name} {own}", hint=hint)
    if types.is_struct(kind):
        return {"properties": _properties(kind, output)}
    if types.is_list(kind) or types.is_large_list(kind):
        return _field_type(kind.value_field, output)
    if types.is_map(kind):
        _check_map_keys(field.name, kind, output)
        # One field for all keys, however many there are.
        return {"type": "flattened", "ignore_above": KEYWORD_LENGTH}
    if types.is_string(kind) or types.is_large_string(kind):
        return dict(TEXT)
    return {"type": next((name for fits, name in SIMPLE_TYPES if fits(kind)), "keyword")}


def _check_map_keys(name: str, kind: pa.DataType, output: Elasticsearch) -> None:
    """DeclarationError if a map has keys that Spark's JSON has no text for: a date becomes the days since 1970."""
    if types.is_map(kind):
        if not (types.is_string(kind.key_type) or types.is_integer(kind.key_type) or types.is_boolean(kind.key_type)):
            raise DeclarationError(
                f"a map of {output.name} has keys that are no text",
                got=f"{name}, by {kind.key_type}",
                hint="make them text: transform_keys(m, (k, v) -> string(k))",
            )
        _check_map_keys(name, kind.item_type, output)
    elif types.is_struct(kind):
        for field in kind:
            _check_map_keys(f"{name}.{field.name}", field.type, output)
    elif types.is_list(kind):
        _check_map_keys(name, kind.value_type, output)


def _properties_at(top: Properties, path: str) -> Properties | None:
    properties: Properties | None = top
    for name in path.split(".") if path else ():
        properties = properties.get(name, {}).get("properties") if properties else None
    return properties


def differences(
    present: Mapping[str, Any], wanted: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]], parent: str = ""
) -> tuple[Properties, list[str]]:
    """The properties to add to the present ones, and what differs, in words. Undeclared ones may be present.

    Args:
        present: the properties that exist.
        wanted: those that are declared.
        parameters: of fields by full name, as they are where a present property leaves them out.
        parent: the full name of the field that has the properties, with a dot.
    """
    missing: Properties = {}
    differing: list[str] = []
    for name, want in wanted.items():
        have = present.get(name)
        if have is None:
            missing[name] = want
            continue
        known = {**parameters.get(parent + name, OBJECT_DEFAULTS), **have}
        differing += [f"{name} {text}" for text in _describe_differences(known, want)]
        for part in ("properties", "fields"):
            more, worse = differences(have.get(part, {}), want.get(part, {}), parameters, f"{parent}{name}.")
            if more:
                missing.setdefault(name, {k: v for k, v in have.items() if k not in ("properties", "fields")})
                missing[name][part] = more
            differing += [f"{name}.{text}" for text in worse]
    return missing, differing


def _describe_differences(have: Mapping[str, Any], want: Mapping[str, Any]) -> Iterator[str]:
    for key, value in {"type": "object", **want}.items():
        if key in ("properties", "fields"):
            continue
        present = have.get(key, "object" if key == "type" else None)
        if not _is_alike(present, value):
            yield f"has {key} {present}, declared is {value}"


def _is_alike(present: Any, declared: Any) -> bool:
    """Whether Elasticsearch answers with one value where it was given the other.

    It gives text for a number or a boolean, 1.0 for 1, a list for its only value, and an object with what was left out.
    """
    if isinstance(present, Mapping) and isinstance(declared, Mapping):
        return all(_is_alike(present.get(name), value) for name, value in declared.items())
    if isinstance(present, list) or isinstance(declared, list):
        have, want = (value if isinstance(value, list) else [value] for value in (present, declared))
        return len(have) == len(want) and all(map(_is_alike, have, want))
    try:
        return str(present).lower() == str(declared).lower() or float(present) == float(declared)
    except (TypeError, ValueError):
        return False
