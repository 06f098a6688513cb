"""Registers the schemas of a release; where the registry refuses one, it gets no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import IncompatibleSchema
from penstock.registry import client


class SubjectSchema(NamedTuple):
    """A schema and where it belongs; kind: `AVRO`, `PROTOBUF` or `JSON`."""

    subject: str
    text: str
    kind: str


def register_all(schemas: Iterable[SubjectSchema]) -> None:
    """Register schemas that are not registered yet.

    Raises:
        IncompatibleSchema: The registry refuses some; `got` is what it says of each.
        RegistryError: The registry refused the login, or one as no valid schema, or did not answer.
        SettingError: There are schemas, and no registry is configured.
    """
    # Only a registration is refused in words. Those that would be refused come first, before another is registered.
    compatible = {schema: client.is_compatible(*schema) for schema in set(schemas)}
    refused: list[IncompatibleSchema] = []
    for schema in sorted(compatible, key=lambda schema: (compatible[schema], schema)):
        if refused and compatible[schema]:
            break
        try:
            client.register(*schema)
        except IncompatibleSchema as e:
            refused.append(e)
    if refused:
        raise IncompatibleSchema(
            "; ".join(e.what for e in refused), got="; ".join(str(e.got) for e in refused), hint=refused[0].hint
        )
