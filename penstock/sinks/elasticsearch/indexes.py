"""Manages the indexes of a sink: creates templates and indexes as declared, and adds fields; changes nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from elasticsearch import AuthorizationException, BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client
from more_itertools import batched

from penstock.errors import SinkError
from penstock.sinks.core.suffixes import FORMATS, end_of_suffix
from penstock.sinks.elasticsearch.client import get_documents, request_errors
from penstock.sinks.elasticsearch.config import Elasticsearch
from penstock.sinks.elasticsearch.mapping import differences, mapping

log = logging.getLogger(__name__)

# Above Elasticsearch's own templates, below those that people make.
PRIORITY = 150
# A search sees a document within this.
REFRESH_INTERVAL = "1s"
# How long the index itself knows the version of a delete, which protects it from a writer that was paused.
GC_DELETES = "10m"
SETTINGS = {"auto_expand_replicas": "0-1", "refresh_interval": REFRESH_INTERVAL, "gc_deletes": GC_DELETES}
# Documents of one request.
PAGE = 5000
# Errors of an index of that name, or of an alias of it or a name that no index can have.
EXISTS = ("resource_already_exists_exception", "invalid_index_name_exception")


def index_template(output: Elasticsearch, shape: pa.StructType) -> dict[str, Any]:
    """The body of an output's index template. DeclarationError if its fields cannot be mapped."""
    # An index of an hour has three dots after the year, one of a year has none.
    dots = ".*" * FORMATS[output.suffix].count(".") if output.suffix else ""
    patterns = [f"{output.index}-{century}*{dots}" for century in (19, 20, 21)] if output.suffix else [output.index]
    template: dict[str, Any] = {"settings": {"index": SETTINGS}, "mappings": mapping(shape, output)}
    if output.suffix:
        # One name for all of them.
        template["aliases"] = {output.index: {}}
    return {"index_patterns": patterns, "priority": PRIORITY, "template": template}


def template_name(index: str) -> str:
    """The name of the template of an output's index."""
    return f"penstock-{index}"


class IndexManager:
    """Prepares indexes before anything is written to them."""

    def __init__(self, client: Client, output: Elasticsearch) -> None:
        self._client = client
        self._output = output
        self._shape: pa.StructType | None = None
        self._template: dict[str, Any] = {}
        self._ready: set[str] = set()

    def prepare(self, shape: pa.StructType) -> None:
        """Prepare the template, and the index unless there is a suffix. SinkError if what exists differs."""
        if shape == self._shape:
            return
        wanted = index_template(self._output, shape)
        name = template_name(self._output.index)
        with request_errors(f"to make template {name}"):
            try:
                [present] = self._client.indices.get_index_template(name=name)["index_templates"]
                outdated = self._is_outdated(name, present["index_template"], wanted)
            except NotFoundError:
                outdated = True
            if outdated:
                self._client.indices.put_index_template(name=name, **wanted)
        self._template, self._shape = wanted["template"], shape
        self._ready.clear()
        if not self._output.suffix:
            self.ensure([self._output.index])

    def _is_outdated(self, name: str, present: Mapping[str, Any], wanted: dict[str, Any]) -> bool:
        """Whether a template lacks fields; `wanted` then gets its settings."""
        if present["index_patterns"] != wanted["index_patterns"]:
            raise SinkError(
                f"index template {name} of Elasticsearch is for other indexes than {self._output.name} writes",
                got=", ".join(present["index_patterns"]),
                hint=f"delete it (DELETE _index_template/{name}) if no sink needs it: it is created again",
            )
        old, declared = present.get("template", {}), wanted["template"]
        index, what = self._output.index, f"index template {name}"
        if not self._missing_fields(what, index, old.get("mappings", {}), declared["mappings"]):
            return False
        declared["settings"] = old.get("settings", declared["settings"])
        log.warning("elasticsearch: index template %s gets new fields", name)
        return True

    def ensure(self, indexes: Iterable[str]) -> None:
        """Create missing indexes, check that the others are as declared, and add new fields to them."""
        for index in sorted(set(indexes) - self._ready):
            with request_errors(f"to make index {index}"):
                try:
                    self._client.indices.create(index=index, **self._template)
                    log.info("elasticsearch: index %s is created", index)
                except BadRequestError as e:
                    if e.error not in EXISTS:
                        raise
                    try:
                        self._extend(index)
                    except NotFoundError:
                        raise e from None
            self._ready.add(index)

    def recheck(self, indexes: Iterable[str]) -> bool:
        """Check indexes that refuse documents; whether fields were missing and are added now.

        Raises:
            SinkError: an index is not one that documents can be written to, so that no document is to blame. Somebody
                may have put another in the place of the one that was created here.
        """
        extended = False
        for index in sorted(set(indexes)):
            with request_errors(f"to look at index {index}"):
                try:
                    extended |= self._extend(index)
                except NotFoundError:
                    self.restore(index)
                    extended = True
        return extended

    def restore(self, index: str) -> None:
        """Create an index again that somebody has deleted."""
        self._ready.discard(index)
        self.ensure([index])

    def _extend(self, index: str) -> bool:
        """Add the fields that an index lacks; whether there were any. SinkError if it is not as declared."""
        indexes: dict[str, Any] = self._client.indices.get(index=index, flat_settings=True).body
        for got, hint in self._write_obstacles(index, indexes):
            what = f"index {index} of Elasticsearch takes no document of {self._output.name}"
            raise SinkError(what, got=got, hint=hint)
        ((name, present),) = indexes.items()
        missing = self._missing_fields(f"index {name}", name, present["mappings"], self._template["mappings"])
        if missing:
            self._client.indices.put_mapping(index=name, properties=missing)
            log.warning("elasticsearch: index %s gets new fields: %s", name, ", ".join(missing))
        return bool(missing)

    def _write_obstacles(self, index: str, indexes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Why nothing can be written under the name of an index, each with the hint."""
        if len(indexes) > 1:
            hint = f"let one index alone have the alias {index}: an older version of a document could be in any of them"
            yield f"it is an alias of {', '.join(sorted(indexes))}", hint
        ((name, present),) = indexes.items()
        if present.get("data_stream"):
            yield f"it is the data stream {present['data_stream']}", "let the sink write into an index of another name"
        if present["aliases"].get(index, {}).get("is_write_index") is False:
            hint = f"let the alias be one that is written by: add it to {name} again with is_write_index: true"
            yield f"it is an alias of {name} with is_write_index: false", hint
        if present["mappings"].get("_routing", {}).get("required"):
            yield "_routing is required there", "make the index without it: documents are written by their ids alone"
        for setting in ("index.default_pipeline", "index.final_pipeline"):
            pipeline = present["settings"].get(setting, "_none")
            if pipeline != "_none" and self._is_missing(pipeline):
                yield f"its {setting} names {pipeline}, which is not there", "make that pipeline, or unset it there"

    def _is_missing(self, pipeline: str) -> bool:
        try:
            return not self._client.ingest.get_pipeline(id=pipeline)
        except NotFoundError:
            return True
        except AuthorizationException:
            return False  # not known

    def _missing_fields(
        self, what: str, index: str, present: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        properties = present.get("properties", {}), wanted["properties"]
        missing, differing = differences(*properties, {})
        if differing:
            missing, differing = differences(*properties, self._parameters(index))
        if differing:
            raise SinkError(
                f"{what} of Elasticsearch is not as {self._output.name} declares it",
                got="; ".join(differing[:10]),
                hint="declare the field as it is there (FIELDS), rename it, or delete what is there and let the "
                "sink start over",
            )
        return missing

    def _parameters(self, index: str) -> dict[str, Mapping[str, Any]]:
        """The parameters of an index's fields by full name, with those at their default, which a mapping leaves out."""
        try:
            indexes = self._client.indices.get_field_mapping(fields="*", index=index, include_defaults=True)
        except NotFoundError:
            return {}
        fields = {name: field for one in indexes.body.values() for name, field in one["mappings"].items()}
        return {name: next(iter(field["mapping"].values()), {}) for name, field in fields.items()}

    def _suffixed(self) -> dict[str, datetime]:
        """The existing indexes that have a name or an alias with a suffix of this unit, each with the end of its time.

        An alias with a filter is not an index: others of its documents may have other times.
        """
        if not self._output.suffix:
            return {}
        prefix = f"{self._output.index}-"
        with request_errors(f"to list {prefix}*"):
            present = self._client.indices.get(index=f"{prefix}*", features="aliases", expand_wildcards="open")
        suffixed: dict[str, datetime] = {}
        for index, entry in sorted(present.body.items()):
            names = [index, *(name for name, alias in entry["aliases"].items() if "filter" not in alias)]
            suffixes = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            if ends := [end for suffix in suffixes if (end := end_of_suffix(suffix, self._output.suffix))]:
                suffixed[index] = max(ends)
        return suffixed

    def holders(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """The suffixed indexes that hold each id, whatever its time."""
        holders: dict[str, list[str]] = {}
        for index, key in self.existing([(index, key) for index in self._suffixed() for key in ids]):
            holders.setdefault(key, []).append(index)
        return holders

    def existing(self, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those pairs of index and id that are documents."""
        existing: set[tuple[str, str]] = set()
        for page in batched(pairs, PAGE):
            wanted = [{"_index": index, "_id": key} for index, key in page]
            fields = "docs._id,docs.found"
            docs = get_documents(self._client, "to look for documents", fields, docs=wanted, source=False)
            # By their order, as the answer names the index behind an alias.
            existing |= {pair for pair, doc in zip(page, docs, strict=True) if doc.get("found")}
        return existing

    def oldest(self, now: datetime) -> datetime | None:
        """The time before which documents have expired; None if none do."""
        seconds = self._output.expire_seconds
        return now - timedelta(seconds=seconds) if seconds else None

    def expire(self, now: datetime) -> None:
        """Drop indexes of which every document has expired."""
        oldest = self.oldest(now)
        for name in [name for name, end in self._suffixed().items() if end <= oldest] if oldest else ():
            with request_errors(f"to drop index {name}"):
                self._client.options(ignore_status=404).indices.delete(index=name)
            self._ready.discard(name)
            log.info("elasticsearch: index %s has expired and is dropped", name)
