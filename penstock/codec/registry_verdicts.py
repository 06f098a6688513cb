"""Whether raw values are those of registered schemas, for streams that read topics of any format."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.formats import writer_text
from penstock.codec.registry_values import Column, ValueText, WriterSchemas, headers_of, one_array
from penstock.errors import RegistryError
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import HEADER_BYTES, schema_id

# Seconds after which subjects, and ids that were unknown, are asked for again.
REFRESH = 60.0


class RegistryVerdicts:
    """Judges the values of topics whose subject, `<topic>-value`, a schema registry has.

    Args:
        endpoint: The registry; None for that of the settings.
    """

    def __init__(self, endpoint: RegistryEndpoint | None) -> None:
        self._endpoint = endpoint
        self._subjects: frozenset[str] = frozenset()
        self._asked_at = -math.inf
        self._schemas = WriterSchemas(writer_text, endpoint)
        self._refused: dict[bytes, str] = {}

    def columns(self, topics: Column, values: Column) -> dict[str, Column]:
        """Judge records.

        Args:
            topics: STRING, the topic of each.
            values: BINARY.

        Returns:
            By name: `_registered BOOLEAN`, whether the registry has the topic's subject; and `_registry_error STRING`,
            why a value of such a topic is not in the wire format or cannot be decoded by the schema of its id; NULL for
            one that can, and for a tombstone.

        Raises:
            RegistryError: The registry does not answer, so subjects or a schema are not known.
        """
        topic_array, value_array = one_array(topics), one_array(values)
        known = self._registered(topic_array, value_array) if len(topic_array) else []
        registered: Any = pc.is_in(topic_array, pa.array(known, pa.string()))
        reasons: list[str | None] = [None] * len(value_array)
        judged: Any = pc.indices_nonzero(registered)
        headers, numbers = headers_of(value_array.take(judged))
        decoders = [self._decoder(header) for header in headers]
        rows: list[Any] = judged.to_pylist()
        of_rows: list[Any] = value_array.take(judged).to_pylist()
        for row, value, number in zip(rows, of_rows, numbers.to_pylist(), strict=True):
            if number is None:
                continue
            decoder = decoders[number]
            if isinstance(decoder, str):
                reasons[row] = decoder
            elif decoder:
                try:
                    orjson.loads(decoder.as_json(value[HEADER_BYTES:]))
                except Exception as e:
                    reasons[row] = f"not of schema id {schema_id(value)}: {type(e).__name__}"
        return {"_registered": registered, "_registry_error": pa.array(reasons, pa.string())}

    def _registered(self, topics: pa.Array[Any], values: pa.Array[Any]) -> list[str]:
        """The topics that have a subject. One that has none may have got it with a record in the wire format."""
        known = self._with_subject(topics.unique().to_pylist())
        may_be_new = pc.invert(pc.is_in(topics, pa.array(known, pa.string())))
        headers, _ = headers_of(values.filter(may_be_new))
        may_be_registered = any(schema_id(header) is not None for header in headers)
        is_old = time.monotonic() - self._asked_at > REFRESH
        if not is_old and not may_be_registered:
            return known
        try:
            self._subjects = client.subjects(self._endpoint)
        except RegistryError:
            # What was registered still is, and what is not in the wire format is of no schema.
            if may_be_registered or self._asked_at == -math.inf:
                raise
        self._asked_at = time.monotonic()
        if is_old:
            self._refused.clear()
        return self._with_subject(topics.unique().to_pylist())

    def _with_subject(self, topics: Iterable[str | None]) -> list[str]:
        return [topic for topic in topics if topic and f"{topic}-value" in self._subjects]

    def _decoder(self, header: bytes) -> ValueText | str | None:
        """What decodes the records that begin with a header, None if only the id is checked; or why none can be."""
        decoder = self._refused.get(header) or self._schemas.of_header(header)
        if isinstance(decoder, str) and schema_id(header) is not None:
            self._refused[header] = decoder
        return decoder
