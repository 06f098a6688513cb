"""Answers of one instance: from its own store, or from the instances that have the partitions it has not."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import orjson

from penstock.settings import settings
from penstock.views.api import problems
from penstock.views.api import query as view_query
from penstock.views.api.freshness import AnswerFreshness, RequestContext, least
from penstock.views.api.problems import Misdirected, Missing, NotReady
from penstock.views.api.query import BadQuery, Counts, KeyLookup, PartialCounts, PartialSearch, Search, ViewQuery
from penstock.views.api.query_pool import QueryPool
from penstock.views.cluster.partition_assignment import owner_order, partition_of
from penstock.views.cluster.peers import InstanceDirectory, PeerClient, PeerResponse
from penstock.views.cluster.protocol import PeerUnavailable
from penstock.views.runner import PartitionState, ViewRun

T = TypeVar("T")

# Bytes of values that one answer holds at most, but for its first row.
PAGE = 8 << 20


class ViewResponse(NamedTuple):
    """An answer's body, and how fresh it is."""

    body: dict[str, Any]
    fresh: AnswerFreshness
    status: int = 200


class ViewsService:
    """All views of an instance. declared: their names; runs: by name, once they are made; pool: for queries; keys: for
    looks for one key, which do not wait behind queries."""

    def __init__(
        self,
        name: str,
        number: int,
        declared: Collection[str],
        directory: InstanceDirectory,
        pool: QueryPool,
        keys: QueryPool,
    ) -> None:
        self.name, self.number, self._declared = name, number, declared
        self.runs: dict[str, ViewRun] = {}
        self.pool, self.keys, self.directory = pool, keys, directory
        self.peers: PeerClient | None = None

    @property
    def stuck(self) -> bool:
        """Whether a thread that reads is lost."""
        return self.pool.stuck or self.keys.stuck

    def view(self, name: str) -> ViewRun:
        if name not in self.runs:
            if name in self._declared:
                raise NotReady("the view is being opened")
            known = ", ".join(sorted(self._declared)) or "none"
            raise Missing("there is no such view", got=name[:200], hint=f"take one of: {known}")
        return self.runs[name]

    # A key

    async def get(self, name: str, key: str, caller: RequestContext) -> ViewResponse | PeerResponse:
        run = self.view(name)
        count = self._count(run)
        partition = partition_of(key, count)
        if caller.forwarded:
            self._assigned(run, [partition])
            return await self._got(run, key, partition, caller)
        for number in self._order(run, partition):
            if number == self.number:
                return await self._got(run, key, partition, caller)
            age = "" if caller.max_age_ms is None else f"?max_age_ms={caller.max_age_ms}"
            try:
                # A client would take a key of dots for a way up.
                wanted = quote(key, safe="").replace(".", "%2E")
                path = f"/v1/views/{quote(name, safe='')}/rows/{wanted}{age}"
                return await self._peers.ask(number, "GET", path, caller.deadline)
            except PeerUnavailable:
                continue
        raise self._no_instance(run, [partition])

    async def _got(self, run: ViewRun, key: str, partition: int, caller: RequestContext) -> ViewResponse:
        held = self._held(run, [partition])
        sql = "SELECT value FROM rows WHERE key = ?"
        rows = await self.keys.run(lambda: run.store.read(sql, (key,)), caller.deadline)
        fresh = self._fresh(run, held, caller)
        body: dict[str, Any] = {"key": key, "freshness": fresh.data, "instance": self.name}
        if not rows:
            return ViewResponse(body, fresh, 404)
        return ViewResponse({**body, "value": orjson.Fragment(rows[0][0])}, fresh)

    # Several keys

    async def batch(self, name: str, asked: KeyLookup, caller: RequestContext) -> ViewResponse:
        run = self.view(name)
        count = self._count(run)
        keys: dict[int, list[str]] = defaultdict(list)
        for key in dict.fromkeys(asked.keys):
            keys[partition_of(key, count)].append(key)

        async def here(partitions: list[int]) -> dict[str, Any]:
            wanted = [key for p in partitions for key in keys[p]]
            held = self._held(run, partitions)
            sql = f"SELECT key, value FROM rows WHERE key IN ({', '.join('?' * len(wanted))})"
            rows = await self.pool.run(lambda: run.store.read(sql, wanted, caller.deadline, PAGE), caller.deadline)
            fresh = self._fresh(run, held, caller)
            if rows.cut:
                raise BadQuery(
                    "these keys' values are more than an answer holds", got=f"over {PAGE} bytes", hint="ask for fewer"
                )
            return {"rows": {k: orjson.Fragment(v) for k, v in rows}, "freshness": fresh.data}

        def asks(partitions: list[int]) -> bytes:
            return KeyLookup(keys=[key for p in partitions for key in keys[p]]).model_dump_json().encode()

        parts = await self._gather(run, "batch", list(keys), caller, here, asks)
        found = {key: value for part in parts for key, value in part["rows"].items()}
        fresh = least(parts)
        missing = [key for key in dict.fromkeys(asked.keys) if key not in found]
        return ViewResponse({"rows": found, "missing": missing, "freshness": fresh.data, "instance": self.name}, fresh)

    # Rows by criteria

    async def search(self, name: str, asked: Search, caller: RequestContext) -> ViewResponse:
        run = self.view(name)
        view_query.search_sql(run.layout, asked, view_query.where_clause(run.layout, asked))

        async def here(partitions: list[int]) -> dict[str, Any]:
            held = self._held(run, partitions)
            query = view_query.search_sql(
                run.layout, asked, view_query.where_clause(run.layout, asked, self._part(run, partitions))
            )
            rows = await self.pool.run(
                lambda: run.store.read(query.sql, query.given, caller.deadline, PAGE), caller.deadline
            )
            fresh = self._fresh(run, held, caller)
            made = [{"key": key, "value": orjson.Fragment(value), "at": at} for key, value, at in rows]
            return {"rows": made, "cut": rows.cut, "freshness": fresh.data}

        asks = _partial_query(run, PartialSearch, asked)
        parts = await self._gather(run, "search", self._wanted(run, asked, caller), caller, here, asks)
        fresh = least(parts)
        if caller.forwarded:
            return ViewResponse(parts[0], fresh)
        rows, more = _merge_page(parts, asked)
        body: dict[str, Any] = {"rows": [{"key": row["key"], "value": row["value"]} for row in rows]}
        if more and rows:
            body["cursor"] = view_query.make_cursor(run.layout, asked, rows[-1]["at"], rows[-1]["key"])
        return ViewResponse({**body, "freshness": fresh.data, "instance": self.name}, fresh)

    # Numbers

    async def counts(self, name: str, asked: Counts, caller: RequestContext) -> ViewResponse:
        run = self.view(name)
        view_query.counts_sql(run.layout, asked, view_query.where_clause(run.layout, asked))

        async def here(partitions: list[int]) -> dict[str, Any]:
            held = self._held(run, partitions)
            query = view_query.counts_sql(
                run.layout, asked, view_query.where_clause(run.layout, asked, self._part(run, partitions))
            )
            rows = await self.pool.run(lambda: run.store.read(query.sql, query.given, caller.deadline), caller.deadline)
            return {"groups": [list(row) for row in rows], "freshness": self._fresh(run, held, caller).data}

        asks = _partial_query(run, PartialCounts, asked)
        parts = await self._gather(run, "counts", self._wanted(run, asked, caller), caller, here, asks)
        fresh = least(parts)
        if caller.forwarded:
            return ViewResponse(parts[0], fresh)
        numbers: dict[tuple[Any, ...], int] = defaultdict(int)
        for part in parts:
            for *values, number in part["groups"]:
                numbers[tuple(values)] += number
        if len(numbers) > view_query.GROUPS:
            raise BadQuery(
                "there are too many groups",
                got=f"over {view_query.GROUPS}",
                hint="count by fewer fields, or ask for less",
            )
        columns = [run.layout.by[name] for name in asked.by]
        groups = [
            {
                **{n: view_query.to_json_value(c, v) for n, c, v in zip(asked.by, columns, values, strict=True)},
                "count": number,
            }
            for values, number in sorted(numbers.items(), key=lambda one: (-one[1], str(one[0])))
        ]
        body = {"groups": groups, "total": sum(numbers.values()), "at": int(time.time() * 1000) - fresh.age_ms}
        return ViewResponse({**body, "freshness": fresh.data, "instance": self.name}, fresh)

    # What is known of a view

    def statistics(self, name: str) -> dict[str, Any]:
        """As this instance knows it: what it holds itself, and who has which partition."""
        run = self.view(name)
        held = dict(run.held)
        now = time.monotonic()
        owners: dict[int, list[str]] = {}
        for partition in range(self._known(run)):
            owners[partition] = [f"views-{n}" for n in self._order(run, partition)]
        return {
            "name": name,
            "topic": run.view.reads[0].name,
            "by": list(run.view.query_fields),
            "schema": run.view.schema,
            "instance": self.name,
            "state": run.figures.state,
            "error": run.figures.error if run.figures.state == "failing" else None,
            **asdict(run.seen),
            "partitions": {
                str(p): {"next": h.next, "end": h.end, "lag": h.end - h.next, "age_ms": int((now - h.at) * 1000)}
                for p, h in sorted(held.items())
            },
            "owners": {str(p): names for p, names in owners.items()},
            "freshness": self._of(held.values()).data if held else None,
        }

    @property
    def ready(self) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Views that are not stopped: those that are loaded; those that cannot be served as their topics are, and why;
        all others, and what they wait for."""
        runs = {name: run for name, run in sorted(self.runs.items()) if run.running}
        loaded = [name for name, run in runs.items() if run.ready]
        refused = {name: run.refused.what for name, run in runs.items() if not run.ready and run.refused}
        waiting = {name: run.waits for name, run in runs.items() if not run.ready and not run.refused}
        return loaded, refused, waiting

    # Who answers

    @property
    def _peers(self) -> PeerClient:
        if self.peers is None:
            raise NotReady("the instance is being started")
        return self.peers

    def _known(self, run: ViewRun) -> int:
        return run.count or self.directory.count(run.view.name)

    def _count(self, run: ViewRun) -> int:
        if count := self._known(run):
            return count
        raise NotReady("the view is not known yet", got=run.figures.error or run.figures.state)

    def _wanted(self, run: ViewRun, asked: ViewQuery, caller: RequestContext) -> list[int]:
        """The partitions that a query is of: all, or those of which another instance asks."""
        if not caller.forwarded:
            return list(range(self._count(run)))
        if not isinstance(asked, PartialSearch | PartialCounts) or asked.store != run.layout.version:
            raise Misdirected("the instance that sent this on keeps the view in another way", got=self.name)
        return sorted(set(asked.partitions))

    def _order(self, run: ViewRun, partition: int) -> list[int]:
        """Who can answer for a partition, in the order in which they are asked."""
        others = self.directory.instances_with(run.view.name, partition)
        if partition not in run.held:
            return others
        sure = [number for number in others if not self.directory.is_suspect(number)]
        doubtful = [number for number in others if self.directory.is_suspect(number)]
        return [*owner_order(partition, [self.number, *sure], max(1, settings().views_instances)), *doubtful]

    def _assigned(self, run: ViewRun, partitions: Sequence[int]) -> None:
        """Misdirected if not all of them are held here: what was forwarded is not sent on."""
        lacking = sorted(set(partitions) - run.held.keys())
        if lacking:
            raise Misdirected(f"{self.name} does not answer for these partitions", got=lacking[:20])

    async def _gather(
        self,
        run: ViewRun,
        what: str,
        partitions: list[int],
        caller: RequestContext,
        here: Callable[[list[int]], Awaitable[dict[str, Any]]],
        asks: Callable[[list[int]], bytes],
    ) -> list[dict[str, Any]]:
        """The parts of an answer, each from the first instance that gives it."""
        if caller.forwarded:
            self._assigned(run, partitions)
            return [await here(partitions)]
        found: list[dict[str, Any]] = []
        left, failed = list(partitions), set[int]()
        while left:
            plan: dict[int, list[int]] = defaultdict(list)
            last = set[int]()
            for partition in left:
                able = [number for number in self._order(run, partition) if number not in failed]
                if not able:
                    raise self._no_instance(run, left)
                plan[able[0]].append(partition)
                if len(able) == 1:
                    last.add(able[0])

            async def part(number: int, mine: list[int], last: bool) -> dict[str, Any] | None:
                if number == self.number:
                    return await here(mine)
                age = "" if caller.max_age_ms is None else f"?max_age_ms={caller.max_age_ms}"
                path = f"/v1/views/{quote(run.view.name, safe='')}/{what}{age}"
                try:
                    answer = await self._peers.ask(number, "POST", path, caller.deadline, content=asks(mine), last=last)
                except PeerUnavailable:
                    return None
                if answer.status != 200:
                    raise problems.peer_error(answer.status, answer.content)
                given: dict[str, Any] = orjson.loads(answer.content)
                return given

            parts = await asyncio.gather(*(part(number, mine, number in last) for number, mine in plan.items()))
            left = []
            for (number, mine), one in zip(plan.items(), parts, strict=True):
                if one is None:
                    failed.add(number)
                    left += mine
                else:
                    found.append(one)
        return found

    def _no_instance(self, run: ViewRun, partitions: Sequence[int]) -> NotReady:
        here = run.figures.error or run.waits
        return NotReady(
            f"no instance has partitions of view {run.view.name} ready",
            got=f"partitions {sorted(partitions)[:20]}; here: {here}",
            hint="ask again: they are being loaded, or their instance is being started",
        )

    # How fresh it is

    def _part(self, run: ViewRun, partitions: list[int]) -> list[int] | None:
        """The partitions of a query; None if these are all of the store."""
        return None if set(partitions) >= run.store.next.keys() else partitions

    def _held(self, run: ViewRun, partitions: Iterable[int]) -> Mapping[int, PartitionState]:
        held = run.held
        try:
            return {partition: held[partition] for partition in partitions}
        except KeyError as e:
            raise NotReady(f"partition {e} is not ready here") from None

    def _fresh(self, run: ViewRun, held: Mapping[int, PartitionState], caller: RequestContext) -> AnswerFreshness:
        """How fresh what was just read is. held: before it was read; NotReady if it was taken away meanwhile, though
        it is there again."""
        now = self._held(run, held)
        if any(now[partition].made != one.made for partition, one in held.items()):
            raise NotReady("the view was made anew meanwhile")
        fresh = self._of(held.values())
        caller.allows(fresh)
        return fresh

    def _of(self, held: Iterable[PartitionState]) -> AnswerFreshness:
        now = time.monotonic()
        return AnswerFreshness.least(
            AnswerFreshness(max(0, one.end - one.next), int((now - one.at) * 1000)) for one in held
        )


def _partial_query(
    run: ViewRun, part: type[PartialSearch | PartialCounts], asked: ViewQuery
) -> Callable[[list[int]], bytes]:
    """What is sent to who has some partitions, and so knows of no more fields than it must."""
    given = asked.model_dump(exclude_defaults=True)

    def made(partitions: list[int]) -> bytes:
        one = part.model_construct(**given, partitions=partitions, store=run.layout.version)
        return one.model_dump_json(exclude_defaults=True).encode()

    return made


def _merge_page(parts: Sequence[Mapping[str, Any]], asked: Search) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a page, and whether there are more. A part that was cut short bounds all of them."""

    def place(row: Mapping[str, Any]) -> tuple[Any, str]:
        return (row["at"] if asked.order != view_query.KEY else 0, row["key"])

    rows = sorted((row for part in parts for row in part["rows"]), key=place, reverse=asked.descending)
    ends = [place(part["rows"][-1]) for part in parts if part["cut"] and part["rows"]]
    more = bool(ends) or len(rows) > asked.limit
    if ends:
        end = max(ends) if asked.descending else min(ends)
        rows = [row for row in rows if (place(row) >= end if asked.descending else place(row) <= end)]
    return rows[: asked.limit], more
