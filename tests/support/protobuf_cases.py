"""Messages that one version of a schema wrote and another reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from penstock.codec.protobuf import written_indexes
from penstock.model.protobuf import Protobuf
from penstock.registry.wire_format import header

EVERYTHING = """
syntax = "proto3";
package demo;
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Color { RED = 0; BLUE = 5; }
message First { string x = 1; }
message Everything {
  message Inner { int32 n = 1; optional string o = 2; }
  int64 id = 1; sint32 i = 2; fixed32 u = 3; uint64 big = 4; float f = 5; double d = 6; bool z = 7; string s = 8;
  bytes y = 9; Color color = 10; optional string note = 11; Inner inner = 12; repeated Inner items = 13;
  repeated Color colors = 14; map<string, int64> counts = 15; map<string, Inner> inners = 16;
  google.protobuf.Timestamp at = 17; google.protobuf.Duration took = 18; google.protobuf.UInt64Value wrapped = 19;
  google.protobuf.StringValue text = 20;
  oneof choice { string first = 21; int32 second = 22; }
}
"""


class ProtobufCase(NamedTuple):
    """The fields of the writer and of the reader, a message as Protobuf's JSON, and the values that are read."""

    writer: str
    reader: str
    written: dict[str, Any]
    read: dict[str, Any]


INNER, WIDE_INNER = "message N { int32 a = 1; }", "message N { int64 a = 1; optional bool c = 2; }"
TIMES = "google.protobuf.Timestamp t = 1; google.protobuf.Duration d = 2;"
AT = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
COLOR, WIDE = "enum Color { RED = 0; BLUE = 1; }", "enum Color { RED = 0; BLUE = 1; GREEN = 2; }"
_CASES: dict[str, tuple[str, str, Any, Any]] = {
    "the same": ("int32 a = 1;", "int32 a = 1;", {"a": 1}, {"a": 1}),
    "added": ("int32 a = 1;", "int32 a = 1; string b = 2;", {"a": 1}, {"a": 1, "b": ""}),
    "added as optional": ("int32 a = 1;", "int32 a = 1; optional int32 b = 2;", {"a": 1}, {"a": 1, "b": None}),
    "removed": ("int32 a = 1; string b = 2;", "int32 a = 1;", {"a": 1, "b": "x"}, {"a": 1}),
    "renamed": ("int32 a = 1;", "int32 count = 1;", {"a": 7}, {"count": 7}),
    "in another order": (
        "string b = 2; int32 a = 1;", "int32 a = 1; string b = 2;", {"a": 1, "b": "x"}, {"a": 1, "b": "x"},
    ),
    "promoted: int32 to int64": ("int32 a = 1;", "int64 a = 1;", {"a": -1}, {"a": -1}),
    "promoted: uint32 to uint64": ("uint32 a = 1;", "uint64 a = 1;", {"a": 2**32 - 1}, {"a": 2**32 - 1}),
    "promoted: string to bytes": ("string a = 1;", "bytes a = 1;", {"a": "x"}, {"a": b"x"}),
    "value to optional": ("int32 a = 1;", "optional int32 a = 1;", {"a": 1}, {"a": 1}),
    "a zero is missing": ("int32 a = 1;", "optional int32 a = 1;", {"a": 0}, {"a": None}),
    "optional: a zero is not missing": ("optional int32 a = 1;", "optional int32 a = 1;", {"a": 0}, {"a": 0}),
    "value to repeated": ("int32 a = 1;", "repeated int32 a = 1;", {"a": 3}, {"a": [3]}),
    "nested: field added, number promoted": (
        f"{INNER} N n = 1;", f"{WIDE_INNER} N n = 1;", {"n": {"a": 1}}, {"n": {"a": 1, "c": None}},
    ),
    "enum: value added": (f"{COLOR} Color e = 1;", f"{WIDE} Color e = 1;", {"e": "BLUE"}, {"e": "BLUE"}),
    "enum: value removed": (f"{WIDE} Color e = 1;", f"{COLOR} Color e = 1;", {"e": "GREEN"}, {"e": "2"}),
    "moved into a oneof": (
        "int32 a = 1;", "oneof o { int32 a = 1; int32 b = 2; }", {"a": 1}, {"a": 1, "b": None},
    ),
    "nested: message added": ("int32 a = 1;", f"{INNER} int32 a = 1; N n = 2;", {"a": 1}, {"a": 1, "n": None}),
    "repeated: messages with a field added": (
        f"{INNER} repeated N l = 1;", f"{WIDE_INNER} repeated N l = 1;", {"l": [{"a": 1}, {}]},
        {"l": [{"a": 1, "c": None}, {"a": 0, "c": None}]},
    ),
    "map: values promoted": (
        "map<string, int32> m = 1;", "map<string, int64> m = 1;", {"m": {"k": -5}}, {"m": {"k": -5}},
    ),
    "repeated: added": ("int32 a = 1;", "int32 a = 1; repeated string l = 2;", {"a": 1}, {"a": 1, "l": []}),
    "oneof: field added": (
        "oneof o { int32 a = 1; string b = 2; }", "oneof o { int32 a = 1; }", {"b": "x"}, {"a": None},
    ),
    "timestamp and duration": (
        TIMES, TIMES, {"t": "2026-02-03T04:05:06.789Z", "d": "1.5s"}, {"t": AT, "d": 1_500_000},
    ),
    "timestamp: added": ("int32 a = 3;", f"{TIMES} int32 a = 3;", {"a": 1}, {"t": None, "d": None, "a": 1}),
    "wrapper: a zero is not missing": (
        "google.protobuf.Int32Value a = 1;", "google.protobuf.Int64Value a = 1;", {"a": 0}, {"a": 0},
    ),
    "of another type is missing": ("string a = 1;", "int32 a = 1;", {"a": "x"}, {"a": 0}),
}  # fmt: skip
CASES = {name: ProtobufCase(*case) for name, case in _CASES.items()}


def schema(fields: str) -> Protobuf:
    files = {"Duration": "duration", "Timestamp": "timestamp", "Value ": "wrappers"}
    imports = "".join(f'import "google/protobuf/{file}.proto"; ' for word, file in files.items() if word in fields)
    return Protobuf(f'syntax = "proto3"; {imports}message R {{ {fields} }}')


def value(of: Protobuf, written: dict[str, Any], number: int = 1) -> bytes:
    """A message as a value of a record; number: the id of its schema."""
    return value_of(of, ParseDict(written, GetMessageClass(of.descriptor)()), number)


def value_of(of: Protobuf, message: Any, number: int = 1) -> bytes:
    return header(number) + written_indexes(of.descriptor) + bytes(message.SerializeToString())
