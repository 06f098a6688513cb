"""What an output to a topic of Avro is refused for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.output import TopicOutput

if TYPE_CHECKING:
    from penstock.model.stream import Stream


def avro_fits(stream: Stream) -> None:
    """Raise DeclarationError if a value has not exactly the fields of its topic's schema."""
    for output in stream.outputs.values():
        if not isinstance(output, TopicOutput) or output.topic.avro is None:
            continue
        fields = [name for name, _ in output.topic.avro.record.fields]
        if isinstance(output.value, str) or sorted(output.value) != sorted(fields):
            raise DeclarationError(
                f"stream {stream.name}: the value for topic {output.topic.name} has not the fields of its Avro schema",
                got=", ".join((output.value,) if isinstance(output.value, str) else output.value),
                hint=f"give value=({', '.join(map(repr, fields))},), and return these columns",
            )
