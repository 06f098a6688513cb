"""The fields of a Protobuf message, and what of it cannot be a column."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.errors import DeclarationError
from penstock.model.proto_file import indexes_of, message_at, proto_file
from penstock.model.protobuf import Protobuf
from penstock.model.types import FieldForm
from tests.support.protobuf_cases import EVERYTHING


def test_types_are_those_of_the_fields() -> None:
    schema = Protobuf(EVERYTHING, message="Everything")
    assert schema.ddl.replace("`", "") == (
        "id BIGINT NOT NULL, i INT NOT NULL, u BIGINT NOT NULL, big DECIMAL(20,0) NOT NULL, f FLOAT NOT NULL, "
        "d DOUBLE NOT NULL, z BOOLEAN NOT NULL, s STRING NOT NULL, y BINARY NOT NULL, color STRING NOT NULL, "
        "note STRING, inner STRUCT<n:INT,o:STRING>, items ARRAY<STRUCT<n:INT,o:STRING>> NOT NULL, "
        "colors ARRAY<STRING> NOT NULL, counts MAP<STRING,BIGINT> NOT NULL, inners MAP<STRING,STRUCT<n:INT,o:STRING>> "
        "NOT NULL, at TIMESTAMP, took BIGINT, wrapped DECIMAL(20,0), text STRING, first STRING, second INT"
    )
    assert [schema.form_of(path) for path in (("S",), ("color",), ("inner", "o"), ("text",), ("counts",), ("x",))] == [
        FieldForm("string", True), FieldForm("enum", False), FieldForm("string", True),
        FieldForm("google.protobuf.StringValue", True), FieldForm("demo.Everything.CountsEntry", False), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("message A { strin a = 1; }", 'line 1: "strin" is not defined'),
        ('import "other.proto"; message A { Other a = 1; }', "File not found"),
        ("", "has no message"),
        ("message A {}", "field the message has a type that is not read; got: A"),
        ("message A { A a = 1; }", "field a has a type that is not read; got: A within itself"),
        ("message A { map<int32, string> a = 1; }", "a map with keys of int32"),
        ('import "google/protobuf/any.proto"; message A { google.protobuf.Any a = 1; }', "got: google.protobuf.Any"),
    ],
)
def test_what_cannot_be_read_is_refused(body: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeclarationError, match=said) as e:
        Protobuf(f'syntax = "proto3"; {body}')
    assert e.value.hint
    assert said not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "head", ['syntax = "proto3"; import "google/protobuf/api.proto";', "/* None, as in older files. */", "// None\n"]
)
def test_what_protoc_warns_of_is_read_without_a_word(head: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert Protobuf(f"{head} message Warned {{ optional int32 a = 1; }}").ddl == "`a` INT"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("required int32 a = 1;", "got: required"),
        ("optional int32 a = 1 [default = 3];", "got: a default"),
        ("optional group G = 1 { optional int32 x = 2; }", "got: group"),
    ],
)
def test_what_only_proto2_has_is_refused(field: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Protobuf(f'syntax = "proto2"; message A {{ {field} }}')
    assert Protobuf('syntax = "proto2"; message A { optional int32 a = 1; }').ddl == "`a` INT"


def test_a_message_is_named_with_or_without_its_package(tmp_path: Path) -> None:
    messages = "message A { int32 a = 1; message B { int32 b = 1; } } message C { int32 c = 1; }"
    text = f'syntax = "proto3"; package p; {messages}'
    path = tmp_path / "a.proto"
    path.write_text(text)
    assert Protobuf.read(path).descriptor.full_name == "p.A"
    names = {name: Protobuf(text, message=name).descriptor.full_name for name in ("A.B", "p.A.B", "C")}
    assert names == {"A.B": "p.A.B", "p.A.B": "p.A.B", "C": "p.C"}
    with pytest.raises(DeclarationError, match=r"no such message; got: D; hint: take one of: p.A, p.C, p.A.B"):
        Protobuf(text, message="D")


def test_messages_are_named_by_their_indexes() -> None:
    file = proto_file(EVERYTHING)
    for path in ((0,), (1,), (1, 0)):
        message = message_at(file, path)
        assert message
        assert indexes_of(message) == path
    assert [message_at(file, path) for path in ((9,), (0, 0), (-1,))] == [None, None, None]


def test_a_descriptor_in_base64_is_a_file_too() -> None:
    descriptor = FileDescriptorProto()
    proto_file(EVERYTHING).CopyToProto(descriptor)
    file = proto_file(b64encode(descriptor.SerializeToString()).decode())
    assert [*file.message_types_by_name] == [*proto_file(EVERYTHING).message_types_by_name]
    with pytest.raises(ValueError, match="no descriptor"):
        proto_file("CAFE")
