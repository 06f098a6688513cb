"""The indexes of a sink: template, mapping and settings as declared, made when they are missing, never changed in
silence."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from elasticsearch import AuthorizationException, BadRequestError, NotFoundError
from elasticsearch import Elasticsearch as Client

from penstock.errors import SinkError
from penstock.sinks.elasticsearch.client import asking, found
from penstock.sinks.elasticsearch.config import PATTERNS, Elasticsearch
from penstock.sinks.elasticsearch.mapping import differences, mapping

log = logging.getLogger(__name__)

# Over what comes with Elasticsearch, below what people give theirs.
PRIORITY = 150
# How a declared one looks that is not there; a search sees a document within this.
REFRESH = "1s"
# A delete is known to the index itself for so long; after that by its grave. In between lies a writer that was paused.
REMEMBERED = "10m"
SETTINGS = {"auto_expand_replicas": "0-1", "refresh_interval": REFRESH, "gc_deletes": REMEMBERED}
# One look at a time.
PAGE = 5000


def template(output: Elasticsearch, shape: pa.StructType) -> dict[str, Any]:
    """What is made of an output: the body of its index template. DeclarationError if its fields cannot be."""
    # Indexes of an hour have three dots after the year, of a year none.
    dots = ".*" * PATTERNS[output.suffix].count(".") if output.suffix else ""
    patterns = [f"{output.index}-{century}*{dots}" for century in (19, 20, 21)] if output.suffix else [output.index]
    made: dict[str, Any] = {"settings": {"index": SETTINGS}, "mappings": mapping(shape, output)}
    if output.suffix:
        # All of them by one name.
        made["aliases"] = {output.index: {}}
    return {"index_patterns": patterns, "priority": PRIORITY, "template": made}


class Layout:
    """Sees to indexes before anything is written to them."""

    def __init__(self, client: Client, output: Elasticsearch) -> None:
        self._client = client
        self._output = output
        self._shape: pa.StructType | None = None
        self._body: dict[str, Any] = {}
        self._known: set[str] = set()

    def prepare(self, shape: pa.StructType) -> None:
        """Let documents of a shape be written. SinkError if what is there is otherwise."""
        if shape == self._shape:
            return
        made = template(self._output, shape)
        name = f"penstock-{self._output.index}"
        with asking(f"to make template {name}"):
            try:
                [there] = self._client.indices.get_index_template(name=name)["index_templates"]
                stale = self._outdated(name, there["index_template"], made)
            except NotFoundError:
                stale = True
            if stale:
                self._client.indices.put_index_template(name=name, **made)
        self._body, self._shape = made["template"], shape
        self._known.clear()
        if not self._output.suffix:
            self.ensure([self._output.index])

    def _outdated(self, name: str, there: Mapping[str, Any], wanted: dict[str, Any]) -> bool:
        """Whether fields are to be added to a template, whose settings stay as they are."""
        if there["index_patterns"] != wanted["index_patterns"]:
            raise SinkError(
                f"index template {name} of Elasticsearch is for other indexes than {self._output.name} writes",
                got=", ".join(there["index_patterns"]),
                hint=f"delete it (DELETE _index_template/{name}) if no sink needs it: it is made anew",
            )
        old, made = there.get("template", {}), wanted["template"]
        if not self._agrees(f"index template {name}", old.get("mappings", {}), made["mappings"]):
            return False
        made["settings"] = old.get("settings", made["settings"])
        log.warning("elasticsearch: index template %s gets new fields", name)
        return True

    def ensure(self, indexes: Iterable[str]) -> None:
        """Make indexes that are missing, see that the others are as declared, and add new fields to them."""
        for index in indexes:
            if index in self._known:
                continue
            with asking(f"to make index {index}"):
                try:
                    self._client.indices.create(index=index, **self._body)
                    log.info("elasticsearch: index %s is made", index)
                except BadRequestError as e:
                    # An alias of the name is there in its place, or it is none that an index can have.
                    if e.error not in ("resource_already_exists_exception", "invalid_index_name_exception"):
                        raise
                    try:
                        self._extend(index)
                    except NotFoundError:
                        raise e from None
            self._known.add(index)

    def look(self, indexes: Iterable[str]) -> bool:
        """Look again at indexes that refuse documents; True if fields were missing there, and are added.

        SinkError if an index is not what documents can be written to, so that none of them is to blame: somebody may
        have put another in the place of the one that was made here.
        """
        extended = False
        for index in indexes:
            with asking(f"to look at index {index}"):
                try:
                    extended |= self._extend(index)
                except NotFoundError:
                    self.restore(index)
                    extended = True
        return extended

    def restore(self, index: str) -> None:
        """Make an index again that somebody has deleted."""
        self._known.discard(index)
        self.ensure([index])

    def _extend(self, index: str) -> bool:
        """Add the fields that an index lacks; whether there were any. SinkError if it is otherwise than declared."""
        found: dict[str, Any] = self._client.indices.get(index=index, flat_settings=True).body
        if wrong := self._unfit(index, found):
            got, hint = wrong
            raise SinkError(
                f"index {index} of Elasticsearch takes no document of {self._output.name}", got=got, hint=hint
            )
        ((name, there),) = found.items()
        missing = self._agrees(f"index {name}", there["mappings"], self._body["mappings"])
        if missing:
            self._client.indices.put_mapping(index=name, properties=missing)
            log.warning("elasticsearch: index %s gets new fields: %s", name, ", ".join(missing))
        return bool(missing)

    def _unfit(self, index: str, found: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why nothing can be written to what stands behind the name of an index, and what mends it."""
        if len(found) > 1:
            hint = f"let one index alone have the alias {index}: an older version of a document could be in any of them"
            return f"it is an alias of {', '.join(sorted(found))}", hint
        ((name, there),) = found.items()
        if there.get("data_stream"):
            return f"it is the data stream {there['data_stream']}", "let the sink write into an index of another name"
        if there["aliases"].get(index, {}).get("is_write_index") is False:
            hint = f"let the alias be one that is written by: add it to {name} again with is_write_index: true"
            return f"it is an alias of {name} with is_write_index: false", hint
        if there["mappings"].get("_routing", {}).get("required"):
            return "_routing is required there", "make the index without it: documents are written by their ids alone"
        for setting in ("index.default_pipeline", "index.final_pipeline"):
            pipeline = there["settings"].get(setting, "_none")
            if pipeline != "_none" and self._is_gone(pipeline):
                return f"its {setting} names {pipeline}, which is not there", "make that pipeline, or unset it there"
        return None

    def _is_gone(self, pipeline: str) -> bool:
        try:
            return not self._client.ingest.get_pipeline(id=pipeline)
        except NotFoundError:
            return True
        except AuthorizationException:
            return False  # not known

    def _agrees(self, what: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        missing, wrong = differences(there.get("properties", {}), wanted["properties"])
        if wrong:
            raise SinkError(
                f"{what} of Elasticsearch is not as {self._output.name} declares it",
                got="; ".join(wrong[:10]),
                hint="declare the field as it is there (FIELDS), rename it, or delete what is there and let the "
                "sink start over",
            )
        return missing

    def suffixed(self) -> list[str]:
        """The indexes with a suffix of this unit that there are."""
        if not self._output.suffix:
            return []
        pattern = f"{self._output.index}-*"
        with asking(f"to list {pattern}"):
            there = self._client.indices.get(index=pattern, features="aliases", expand_wildcards="open")
        return sorted(name for name in there if self._ends(name))

    def homes(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """In which of the suffixed indexes each id lies, whatever its time."""
        homes: dict[str, list[str]] = {}
        for index, key in self.there([(index, key) for index in self.suffixed() for key in ids]):
            homes.setdefault(key, []).append(index)
        return homes

    def there(self, places: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of some places, index and id, that hold a document."""
        holding: set[tuple[str, str]] = set()
        for start in range(0, len(places), PAGE):
            part = [{"_index": index, "_id": key} for index, key in places[start : start + PAGE]]
            told = "docs._id,docs.found"
            docs = found(self._client, "to look for documents", told, docs=part, source=False)
            # In their order: of an alias the answer names the index behind it.
            asked = zip(places[start : start + PAGE], docs, strict=True)
            holding |= {place for place, doc in asked if doc.get("found")}
        return holding

    def index_of(self, at: datetime) -> str:
        """The index for a time."""
        return f"{self._output.index}-{at.strftime(PATTERNS[self._output.suffix or 'day'])}"

    def oldest(self, now: datetime) -> datetime | None:
        """The start of the first index that is still kept; None if all are."""
        kept = self._output.expire_seconds
        return now - timedelta(seconds=kept) if kept else None

    def expire(self, now: datetime) -> list[str]:
        """Drop indexes all of whose time is over; which."""
        since = self.oldest(now)
        over = [name for name in self.suffixed() if (end := self._ends(name)) and end <= since] if since else []
        for name in over:
            with asking(f"to drop index {name}"):
                try:
                    self._client.indices.delete(index=name)
                except NotFoundError:
                    continue
            self._known.discard(name)
            log.info("elasticsearch: index %s is dropped, its time is over", name)
        return over

    def _ends(self, name: str) -> datetime | None:
        """Where the time of an index ends; None if it is none of this sink."""
        return ends(name.removeprefix(f"{self._output.index}-"), self._output.suffix or "day")


def ends(suffix: str, unit: str) -> datetime | None:
    """The end of the time that a suffix stands for; None if it is no suffix of that unit."""
    if not re.fullmatch(r"[0-9]{4}(\.[0-9]{2})*", suffix):
        return None
    try:
        start = datetime.strptime(suffix, PATTERNS[unit]).replace(tzinfo=UTC)
        if unit == "year":
            return start.replace(year=start.year + 1)
        if unit == "month":
            return (start + timedelta(days=31)).replace(day=1)
        return start + (timedelta(days=1) if unit == "day" else timedelta(hours=1))
    except (ValueError, OverflowError):
        return None  # none of the calendar, or its end is not: an index of somebody else
