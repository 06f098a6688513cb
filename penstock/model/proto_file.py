"""Texts of `.proto` files as descriptors, compiled by protoc within this process."""

from __future__ import annotations

import ast
import re
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.errors import optional_packages

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

NAME = "schema.proto"
WELL_KNOWN = "google/protobuf/"
# Confluent's serialiser for Python registers a descriptor instead of a text.
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
SYNTAX = re.compile(r"\b(?:syntax|edition)\b")
# protoc has state of its process.
_LOCK = Lock()


@cache
def proto_file(text: str) -> FileDescriptor:
    """The descriptor of a file.

    Args:
        text: The text, which imports nothing but `google/protobuf/*.proto`; or a FileDescriptorProto in base64.

    Raises:
        ValueError: It is neither.
    """
    with optional_packages():
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
    pool: Any = DescriptorPool()
    try:
        if BASE64.fullmatch(text.strip()):
            last = FileDescriptorProto.FromString(b64decode(text))
            files = [*_well_known(last.dependency), last]
        else:
            files = _compiled(text)
        for file in files:
            pool.Add(file)
        descriptor: FileDescriptor = pool.FindFileByName(files[-1].name)
    except (DecodeError, TypeError, KeyError, ImportError) as e:
        raise ValueError(f"no descriptor of a .proto file: {e}") from e
    return descriptor


def message_at(file: FileDescriptor, path: Sequence[int]) -> Descriptor | None:
    """The message of a file that a list of indexes names, from the outermost; None if there is none."""
    messages: list[Descriptor] = [*file.message_types_by_name.values()]
    message = None
    for number in path:
        if not 0 <= number < len(messages):
            return None
        message = messages[number]
        messages = [*message.nested_types]
    return message


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """The indexes of a message in its file, from the outermost, as `message_at` reads them."""
    outer = message.containing_type
    if outer:
        return (*indexes_of(outer), [*outer.nested_types].index(message))
    return ([*message.file.message_types_by_name.values()].index(message),)


def _compiled(text: str) -> list[Any]:
    """The descriptors of a text and of what it imports, itself last."""
    with optional_packages():
        from grpc_tools import _protoc_compiler
    include = str(resources.files("grpc_tools") / "_proto")
    if not SYNTAX.search(text):
        # protoc's warning cannot be switched off.
        text = f'syntax = "proto2"; {text}'
    with _LOCK, TemporaryDirectory() as folder:
        Path(folder, NAME).write_text(text)
        try:
            # protoc's main prints errors and warnings.
            modules = _protoc_compiler.get_protos(NAME.encode(), [folder.encode(), include.encode()])
        except Exception as e:
            raise ValueError(_errors(e)) from e
    return [_descriptor_in(module) for _, module in modules]


def _descriptor_in(module: bytes) -> Any:
    """The descriptor of a file in the module that protoc makes of it, which begins by registering it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    calls = (node for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Call))
    call = next(one for one in calls if getattr(one.func, "attr", "") == "AddSerializedFile")
    return FileDescriptorProto.FromString(ast.literal_eval(call.args[0]))


def _errors(error: Exception) -> str:
    """The words of protoc, with lines from 1."""
    one: Any
    lines = []
    for one in error.args[0] if error.args and isinstance(error.args[0], list | tuple) else ():
        words = one.message.decode() if isinstance(one.message, bytes) else str(one.message)
        lines.append(f"line {one.line + 1}: {words}" if one.line >= 0 else words)
    return "; ".join(lines) or str(error)


def _well_known(names: Sequence[str]) -> list[Any]:
    """The descriptors of imported files, those that they import first."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    files: dict[str, Any] = {}
    for name in names:
        if not name.startswith(WELL_KNOWN):
            raise ValueError(f"it imports {name}")
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        files |= {one.name: one for one in [*_well_known(file.dependency), file]}
    return [*files.values()]
