"""Reads and registers schemas, by Confluent's client. A process keeps what it has read: ids never change.

Only a release registers. A running batch reads.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.errors import (
    IncompatibleSchema,
    PenstockError,
    RegistryError,
    SchemaNotRegistered,
    UnknownSchema,
    optional_packages,
)
from penstock.registry.endpoint import API, RegistryEndpoint, find_endpoint

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds to connect, and between two parts of an answer."""
RETRIES, RETRY_MS, MAX_RETRY_MS = 2, 500, 2000
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
# Words of a registry or of a proxy before it, which may send a page.
MESSAGE_LENGTH = 2000


class WriterSchema(NamedTuple):
    """A schema as it is registered.

    Attributes:
        text: The schema.
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        references: The subjects of other schemas that it needs, each with its version.
    """

    text: str
    kind: str
    references: tuple[str, ...] = ()


def schema_of(schema_id: int, endpoint: RegistryEndpoint | None = None) -> WriterSchema:
    """The schema of an id.

    Args:
        schema_id: The id, as records have it before their value.
        endpoint: The registry; None for that of the settings.

    Raises:
        UnknownSchema: The registry has no such id.
        RegistryError: The registry refused or did not answer.
        SettingError: No registry is configured.
    """
    with optional_packages():
        from confluent_kafka.schema_registry import Schema

    endpoint = endpoint or find_endpoint()
    if endpoint.table is not None:
        entry = dict(enumerate(endpoint.table, 1)).get(schema_id)
        schema = Schema(*entry[1:]) if entry else None
    else:
        client = _shared_client(endpoint)
        with _errors(f"schema {schema_id}"):
            schema = _unless_absent(lambda: client.get_schema(schema_id), SCHEMA_NOT_FOUND)
    if schema is None:
        raise UnknownSchema(
            f"the schema registry has no schema of id {schema_id}",
            hint="find out who writes records with this id, and which registry it uses",
        )
    references = tuple(f"{one.subject} {one.version}" for one in schema.references or ())
    return WriterSchema(str(schema.schema_str), str(schema.schema_type), references)


def subjects(endpoint: RegistryEndpoint | None = None) -> frozenset[str]:
    """The subjects that the login may see. Argument and errors as for `schema_of`, except for UnknownSchema."""
    endpoint = endpoint or find_endpoint()
    if endpoint.table is not None:
        return frozenset(subject for subject, _, _ in endpoint.table)
    with _errors("the list of subjects"):
        return frozenset(_shared_client(endpoint).get_subjects())


def subject_schemas(subject: str, kind: str) -> dict[int, str]:
    """All versions of a subject that are of one format and refer to no other schemas.

    Args:
        subject: The subject, such as `orders-value`.
        kind: `AVRO`, `PROTOBUF` or `JSON`.

    Returns:
        The schemas by id, the oldest version first; empty if there is no such subject.

    Raises:
        RegistryError: The registry refused or did not answer.
        SettingError: No registry is configured.
    """
    endpoint, schemas = find_endpoint(), dict[int, str]()
    if endpoint.table is not None:
        entries = enumerate(endpoint.table, 1)
        return {number: text for number, (name, text, of) in entries if (name, of) == (subject, kind)}
    client = _shared_client(endpoint)
    with _errors(f"subject {subject}"):
        versions: list[int] = _unless_absent(lambda: client.get_versions(subject), SUBJECT_NOT_FOUND) or []
        for version in sorted(versions):
            # One may be deleted meanwhile.
            one = partial(client.get_version, subject, version)
            registered: Any = _unless_absent(one, SUBJECT_NOT_FOUND, VERSION_NOT_FOUND)
            if registered and registered.schema.schema_type == kind and not registered.schema.references:
                schemas[registered.schema_id] = registered.schema.schema_str
    return schemas


def registered_id(subject: str, text: str, kind: str) -> int:
    """The id of a schema that is registered under a subject.

    Args:
        subject: The subject, such as `orders-value`.
        text: The schema; how JSON in it is formatted does not matter.
        kind: `AVRO`, `PROTOBUF` or `JSON`.

    Raises:
        SchemaNotRegistered: It is not registered under this subject.
        RegistryError: The registry refused or did not answer.
        SettingError: No registry is configured.
    """
    schema_id = _find_id(subject, text, kind)
    if schema_id is None:
        raise SchemaNotRegistered(
            f"the schema is not registered under {subject}",
            got=f"{kind} {text[:200]}",
            hint="release the app that writes the topic: penstock streams release APP",
        )
    return schema_id


def is_registered(subject: str, text: str, kind: str) -> bool:
    """Whether a schema is registered under a subject. Arguments and errors as for `registered_id`."""
    return _find_id(subject, text, kind) is not None


def register(subject: str, text: str, kind: str) -> int:
    """Register a schema under a subject, unless it is; the registry checks that it is compatible.

    Args:
        subject: The subject, such as `orders-value`.
        text: The schema; how JSON in it is formatted does not matter.
        kind: `AVRO`, `PROTOBUF` or `JSON`.

    Returns:
        Its id.

    Raises:
        IncompatibleSchema: The registry refuses it, by the compatibility that the subject has; `got` is what it says.
        RegistryError: The registry refused it as no valid schema, refused the login, or did not answer.
        SettingError: No registry is configured.
    """
    schema = _schema(text, kind)
    # A client of its own: what another remembers may have been deleted since.
    with closing(_client(find_endpoint())) as client, _errors(f"the schema of {subject}"):
        if (schema_id := _lookup(client, subject, schema)) is not None:
            return schema_id
        try:
            return client.register_schema(subject, schema)
        except _refusal() as e:
            if e.http_status_code != HTTPStatus.CONFLICT:
                raise
            # Another release may have registered the same in this moment.
            if (schema_id := _lookup(client, subject, schema)) is not None:
                return schema_id
            raise IncompatibleSchema(
                f"the schema of {subject} is not compatible with the registered versions",
                got=_message(e),
                hint="keep the fields and types that there are, and in Avro give new fields a default; or write "
                "another topic; or change the compatibility of the subject in the registry",
            ) from e


def is_compatible(subject: str, text: str, kind: str) -> bool:
    """Whether the registry would surely take a schema, as the next version of a subject or as its first.

    If not, it may still take it: Apicurio compares with all versions here, also where only the last one counts.

    Args:
        subject: The subject, such as `orders-value`.
        text: The schema.
        kind: `AVRO`, `PROTOBUF` or `JSON`.

    Raises:
        RegistryError: The registry refused it as no valid schema, refused the login, or did not answer.
        SettingError: No registry is configured.
    """
    schema = _schema(text, kind)
    with closing(_client(find_endpoint())) as client, _errors(f"the schema of {subject}"):
        answer = _unless_absent(
            lambda: client.test_compatibility_all_versions(subject, schema), SUBJECT_NOT_FOUND, VERSION_NOT_FOUND
        )
    return answer is not False


def probe(endpoint: RegistryEndpoint) -> int:
    """The number of subjects that the login may see. RegistryError if the registry refused or did not answer."""
    with closing(_client(endpoint, retries=0)) as client, _errors("the list of subjects"):
        return len(client.get_subjects())


_clients: dict[RegistryEndpoint, SchemaRegistryClient] = {}
# A connection that two processes have would mix their answers.
os.register_at_fork(after_in_child=_clients.clear)


def _shared_client(endpoint: RegistryEndpoint) -> SchemaRegistryClient:
    """The client of this process, which keeps what it has read."""
    if endpoint not in _clients:
        _clients[endpoint] = _client(endpoint)
    return _clients[endpoint]


def _client(endpoint: RegistryEndpoint, *, retries: int = RETRIES) -> SchemaRegistryClient:
    with optional_packages():
        from confluent_kafka.schema_registry import SchemaRegistryClient

    config: dict[str, Any] = {
        "url": endpoint.url,
        "timeout": TIMEOUT,
        "max.retries": retries,
        "retries.wait.ms": RETRY_MS,
        "retries.max.wait.ms": MAX_RETRY_MS,
    }
    if endpoint.login:
        config["basic.auth.user.info"] = endpoint.login
    system = ssl.get_default_verify_paths()
    # By itself the client knows public authorities only.
    if ca := endpoint.ca or system.cafile or system.capath:
        config["ssl.ca.location"] = ca
    return SchemaRegistryClient(config)


def _schema(text: str, kind: str) -> Schema:
    with optional_packages():
        from confluent_kafka.schema_registry import Schema

    if kind != "PROTOBUF":
        # Registries compare texts: another indentation would be another version. Their words say what is no JSON.
        with suppress(ValueError):
            text = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return Schema(text, kind)


def _find_id(subject: str, text: str, kind: str) -> int | None:
    endpoint = find_endpoint()
    if endpoint.table is not None:
        return endpoint.table.index((subject, text, kind)) + 1 if (subject, text, kind) in endpoint.table else None
    client = _shared_client(endpoint)
    with _errors(f"subject {subject}"):
        return _lookup(client, subject, _schema(text, kind))


def _lookup(client: SchemaRegistryClient, subject: str, schema: Schema) -> int | None:
    """The id of a schema under a subject; None if it is not registered there."""
    # Others may have registered it with other whitespace, or its attributes in another order.
    for normalize in (False, True):
        request = partial(client.lookup_schema, subject, schema, normalize)
        if registered := _unless_absent(request, SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND):
            return registered.schema_id
    return None


def _unless_absent(request: Callable[[], T], *codes: int) -> T | None:
    """The answer to a request; None if it is an error of one of the codes."""
    try:
        return request()
    except _refusal() as e:
        if e.error_code not in codes:
            raise
        return None


def _refusal() -> Any:
    """The class of the client's errors for answers that say no."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    return SchemaRegistryError


def _message(refusal: Any) -> str:
    return str(refusal.error_message)[:MESSAGE_LENGTH]


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Raise RegistryError for whatever the client raises: its own error, of HTTP, or of an answer that is no JSON."""
    try:
        yield
    except PenstockError:
        raise
    except _refusal() as e:
        status, message = e.http_status_code, _message(e)
        hint = "see what it says"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            hint = "check user and password of PENSTOCK_SCHEMA_REGISTRY_URL, and what this user may do"
        elif status == HTTPStatus.NOT_FOUND:
            hint = f"check the path in PENSTOCK_SCHEMA_REGISTRY_URL; that of Apicurio Registry is {API}"
        raise RegistryError(f"the schema registry refuses {what}", got=f"status {status}: {message}", hint=hint) from e
    except Exception as e:
        raise RegistryError(
            f"the schema registry does not answer, so {what} is not known",
            got=f"{type(e).__name__}: {e}"[:MESSAGE_LENGTH],
            hint="check that it runs, and PENSTOCK_SCHEMA_REGISTRY_URL and PENSTOCK_SCHEMA_REGISTRY_CA",
        ) from e
