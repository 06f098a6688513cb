"""What the stores hold, read by plain clients, against what the topics say they must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import datetime
from typing import Any

import httpx
from pymongo import MongoClient

from tests.chaos.long.topics import Topics
from tests.chaos.sinks.oracle import Document, ExpectedStore, Position, expected_stores, without_nulls

PAGE = 5000
SHOWN = 3

Held = Iterator[tuple[Hashable, Document]]


class Checker:
    """urls: of the stores that run, by name. compared: of the last look, by sink, and dead letters."""

    def __init__(self, bootstrap: str, urls: dict[str, str]) -> None:
        self._topics, self._urls = Topics(bootstrap), urls
        self.compared: Counter[str] = Counter()

    def mistakes(self) -> list[str]:
        """All that is missing, too much or other than it must be, told of some examples each."""
        self.compared.clear()
        right = expected_stores(self._topics.read("items"), self._topics.read("events"))
        readers = {"search": "elasticsearch", "documents": "mongodb", "points": "influxdb"}
        right = {name: one for name, one in right.items() if readers[name.partition("-")[0]] in self._urls}
        expected = [text for name, one in right.items() for text in self._of_sink(name, one)]
        return [*expected, *self._of_letters(right)]

    def close(self) -> None:
        self._topics.close()

    def _of_sink(self, name: str, right: ExpectedStore) -> Iterator[str]:
        held, twice = dict[Hashable, Document](), list[Hashable]()
        for key, document in HELD[name](self._urls):
            if key in held:
                twice.append(key)
            held[key] = without_nulls(document)
        self.compared[name] = len(right.documents)
        yield from differences(name, held, right.documents)
        yield from _told(f"{name}: there twice", twice)

    def _of_letters(self, right: dict[str, ExpectedStore]) -> Iterator[str]:
        """Each poison record is one dead letter of each sink that does not take it, if it gets that far."""
        of_schema: Counter[tuple[str, Position]] = Counter()
        for topic in ("items", "events"):
            of_schema.update(self._letters(f"{topic}-dead-letter"))
        for name, one in right.items():
            own = Counter({place: count for (stream, place), count in of_schema.items() if stream == name})
            yield from _letters_differ(f"{name}: letters of the schema", own, one.invalid, set())
            refused = Counter(place for _, place in self._letters(f"{name}-dead-letter"))
            yield from _letters_differ(f"{name}: letters of the store", refused, one.refused, one.maybe_refused)
            self.compared["dead letters"] += len(one.invalid) + len(one.refused)

    def _letters(self, topic: str) -> list[tuple[str, Position]]:
        """The stream and the origin of each."""
        text = [{n.removeprefix("penstock."): v for n, v in r.headers.items()} for r in self._topics.read(topic)]
        return [(one["stream"], (one["topic"], int(one["partition"]), int(one["offset"]))) for one in text]


def differences(name: str, held: dict[Hashable, Document], right: dict[Hashable, Document]) -> Iterator[str]:
    yield from _told(f"{name}: missing", [(key, right[key]) for key in right.keys() - held.keys()])
    yield from _told(f"{name}: too many", [(key, held[key]) for key in held.keys() - right.keys()])
    other = [key for key in right.keys() & held.keys() if held[key] != right[key]]
    yield from _told(f"{name}: differs", [f"{key}: {held[key]}, not {right[key]}" for key in other])


def _letters_differ(
    name: str, expected: Counter[Position], right: set[Position], maybe: set[Position]
) -> Iterator[str]:
    yield from _told(f"{name}: missing", sorted(right - expected.keys()))
    yield from _told(f"{name}: too many", sorted((expected - Counter(right | maybe)).elements()))


def _told(what: str, those: Sequence[object]) -> Iterator[str]:
    if those:
        yield f"{what}: {len(those)}, such as {', '.join(str(one)[:600] for one in those[:SHOWN])}"


# What each sink's place holds


def _search(url: str, index: str) -> Iterator[tuple[str, Document]]:
    """All documents of an index by id, with their versions."""
    with httpx.Client(base_url=url, timeout=60) as client:
        client.post(f"/{index}/_refresh").raise_for_status()
        page = client.post(f"/{index}/_search?scroll=2m&size={PAGE}", json={"version": True}).raise_for_status().json()
        while hits := page["hits"]["hits"]:
            for hit in hits:
                yield hit["_id"], {**hit["_source"], "_version": hit["_version"]}
            more = {"scroll": "2m", "scroll_id": page["_scroll_id"]}
            page = client.post("/_search/scroll", json=more).raise_for_status().json()


def _search_log(urls: dict[str, str]) -> Held:
    for _, document in _search(urls["elasticsearch"], "events"):
        at = round(datetime.fromisoformat(document["at"]).timestamp() * 1000)
        yield document["n"], {**document, "at": at}


def _documents(urls: dict[str, str], name: str) -> Held:
    with MongoClient[Document](urls["mongodb"]) as client:
        for document in client["chaos"][name].find():
            yield document.pop("_id"), document


def _documents_log(urls: dict[str, str]) -> Held:
    with MongoClient[Document](urls["mongodb"], tz_aware=True) as client:
        for name in (one for one in client["chaos"].list_collection_names() if one.startswith("events-")):
            for document in client["chaos"][name].find({}, {"_id": 0}):
                yield (document["n"], document["part"]), {**document, "collection": name}


def _points(urls: dict[str, str], measurement: str, *tags: str) -> Held:
    params = {"q": f'SELECT * FROM "{measurement}"', "db": "chaos", "epoch": "u"}
    answer = httpx.get(f"{urls['influxdb']}/query", params=params, timeout=120).raise_for_status()
    [result] = answer.json()["results"]
    for series in result.get("series", ()):
        for values in series["values"]:
            point: dict[str, Any] = dict(zip(series["columns"], values, strict=True))
            key = (*(point.pop(tag) for tag in tags), point.pop("time"))
            yield key, point


HELD: dict[str, Callable[[dict[str, str]], Held]] = {
    "search-now": lambda urls: _search(urls["elasticsearch"], "items"),
    "search-latest": lambda urls: _search(urls["elasticsearch"], "latest"),
    "search-log": _search_log,
    "documents-now": lambda urls: _documents(urls, "items"),
    "documents-marked": lambda urls: _documents(urls, "marked"),
    "documents-log": _documents_log,
    "points-now": lambda urls: _points(urls, "items", "id"),
    "points-log": lambda urls: _points(urls, "events", "sensor", "kind"),
}
