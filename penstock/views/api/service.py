"""Answers requests from this instance's stores, or from other instances for the partitions that it does not have."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from penstock.settings import settings
from penstock.views.api import problems
from penstock.views.api import query as view_query
from penstock.views.api.freshness import AnswerFreshness, RequestContext, least
from penstock.views.api.partial_answers import merge_page, partial_query, view_path
from penstock.views.api.problems import Misdirected, Missing, NotReady
from penstock.views.api.query import (
    BadQuery,
    Counts,
    KeyLookup,
    PartialCounts,
    PartialSearch,
    Search,
    SqlQuery,
    ViewQuery,
)
from penstock.views.api.query_pool import QueryPool
from penstock.views.cluster.partition_assignment import owner_order, partition_of
from penstock.views.cluster.peers import InstanceDirectory, PeerClient, PeerResponse
from penstock.views.cluster.protocol import PeerUnavailable
from penstock.views.runner import PartitionState, ViewRun
from penstock.views.store.sqlite import QueryResult

# Bytes of values in one answer, at most, but for its first row.
PAGE = 8 << 20


class ViewResponse(NamedTuple):
    """An answer's body, and how fresh it is."""

    body: dict[str, Any]
    fresh: AnswerFreshness
    status: int = 200


class ViewsService:
    """All views of an instance.

    Args:
        name: Name of the instance.
        number: Number of the instance.
        declared: Names of the declared views.
        directory: The partitions of all instances.
        pool: Threads for queries.
        keys: Threads for lookups of one key, which do not wait for queries.

    Attributes:
        runs: The views by name, once they are opened.
        peers: Client of the other instances, once the server has started.
    """

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
        """Whether a thread that reads does not end."""
        return self.pool.stuck or self.keys.stuck

    def view(self, name: str) -> ViewRun:
        if name not in self.runs:
            if name in self._declared:
                raise NotReady("the view is being opened")
            views = ", ".join(sorted(self._declared)) or "none"
            raise Missing("there is no such view", got=name[:200], hint=f"use one of: {views}")
        return self.runs[name]

    async def get(self, name: str, key: str, context: RequestContext) -> ViewResponse | PeerResponse:
        """The value of a key."""
        run = self.view(name)
        partition = partition_of(key, self._partition_count(run))
        if context.forwarded:
            self._check_assigned(run, [partition])
            return await self._get_own(run, key, partition, context)
        for number in self._candidates(run, partition):
            if number == self.number:
                return await self._get_own(run, key, partition, context)
            try:
                # A client would resolve a key of dots as a relative path.
                quoted = quote(key, safe="").replace(".", "%2E")
                path = view_path(name, f"rows/{quoted}", context)
                return await self._connected_peers.ask(number, "GET", path, context.deadline)
            except PeerUnavailable:
                continue
        raise self._no_instance(run, [partition])

    async def _get_own(self, run: ViewRun, key: str, partition: int, context: RequestContext) -> ViewResponse:
        before = self._states(run, [partition])
        rows = await self.keys.run(
            lambda: run.store.read("SELECT value FROM rows WHERE key = ?", (key,)), context.deadline
        )
        freshness = self._freshness(run, before, context)
        body: dict[str, Any] = {"key": key, "freshness": freshness.data, "instance": self.name}
        if not rows:
            return ViewResponse(body, freshness, 404)
        return ViewResponse({**body, "value": orjson.Fragment(rows[0][0])}, freshness)

    async def batch(self, name: str, lookup: KeyLookup, context: RequestContext) -> ViewResponse:
        """The values of several keys."""
        run = self.view(name)
        count = self._partition_count(run)
        unique = list(dict.fromkeys(lookup.keys))
        keys: dict[int, list[str]] = defaultdict(list)
        for key in unique:
            keys[partition_of(key, count)].append(key)

        async def read(partitions: list[int]) -> dict[str, Any]:
            keys_here = [key for p in partitions for key in keys[p]]
            before = self._states(run, partitions)
            sql = f"SELECT key, value FROM rows WHERE key IN ({', '.join('?' * len(keys_here))})"
            rows = await self.pool.run(lambda: run.store.read(sql, keys_here, context.deadline, PAGE), context.deadline)
            freshness = self._freshness(run, before, context)
            if rows.cut:
                raise BadQuery(
                    "the values of these keys exceed the size of an answer",
                    got=f"over {PAGE} bytes",
                    hint="ask for fewer keys",
                )
            return {"rows": {k: orjson.Fragment(v) for k, v in rows}, "freshness": freshness.data}

        def body_for(partitions: list[int]) -> bytes:
            return KeyLookup(keys=[key for p in partitions for key in keys[p]]).model_dump_json().encode()

        parts = await self._gather(run, "batch", list(keys), context, read, body_for)
        values = {key: value for part in parts for key, value in part["rows"].items()}
        missing = [key for key in unique if key not in values]
        return self._response({"rows": values, "missing": missing}, least(parts))

    async def search(self, name: str, query: Search, context: RequestContext) -> ViewResponse:
        """A page of rows by criteria."""
        run = self.view(name)
        statement = view_query.search_sql(run.layout, query)

        async def read(partitions: list[int]) -> dict[str, Any]:
            rows, freshness = await self._query(run, statement, partitions, context, PAGE)
            page = [{"key": key, "value": orjson.Fragment(value), "at": at} for key, value, at in rows]
            return {"rows": page, "cut": rows.cut, "freshness": freshness.data}

        body_for = partial_query(run, PartialSearch, query)
        parts = await self._gather(run, "search", self._partitions(run, query, context), context, read, body_for)
        freshness = least(parts)
        if context.forwarded:
            return ViewResponse(parts[0], freshness)
        rows, more = merge_page(parts, query)
        body: dict[str, Any] = {"rows": [{"key": row["key"], "value": row["value"]} for row in rows]}
        if more and rows:
            body["cursor"] = view_query.make_cursor(run.layout, query, rows[-1]["at"], rows[-1]["key"])
        return self._response(body, freshness)

    async def counts(self, name: str, query: Counts, context: RequestContext) -> ViewResponse:
        """Numbers of rows by groups."""
        run = self.view(name)
        statement = view_query.counts_sql(run.layout, query)

        async def read(partitions: list[int]) -> dict[str, Any]:
            rows, freshness = await self._query(run, statement, partitions, context)
            return {"groups": [list(row) for row in rows], "freshness": freshness.data}

        body_for = partial_query(run, PartialCounts, query)
        parts = await self._gather(run, "counts", self._partitions(run, query, context), context, read, body_for)
        freshness = least(parts)
        if context.forwarded:
            return ViewResponse(parts[0], freshness)
        numbers: dict[tuple[Any, ...], int] = defaultdict(int)
        for part in parts:
            for *values, number in part["groups"]:
                numbers[tuple(values)] += number
        if len(numbers) > view_query.GROUPS:
            hint = "count by fewer fields, or narrow the criteria"
            raise BadQuery("there are too many groups", got=f"over {view_query.GROUPS}", hint=hint)
        columns = [(name, run.layout.by[name]) for name in query.by]
        groups = [
            {
                **{n: view_query.to_json_value(c, v) for (n, c), v in zip(columns, values, strict=True)},
                "count": number,
            }
            for values, number in sorted(numbers.items(), key=lambda group: (-group[1], str(group[0])))
        ]
        at = int(time.time() * 1000) - freshness.age_ms
        return self._response({"groups": groups, "total": sum(numbers.values()), "at": at}, freshness)

    def _response(self, body: dict[str, Any], freshness: AnswerFreshness) -> ViewResponse:
        return ViewResponse({**body, "freshness": freshness.data, "instance": self.name}, freshness)

    async def _query(
        self, run: ViewRun, statement: SqlQuery, partitions: list[int], context: RequestContext, most: int = 0
    ) -> tuple[QueryResult, AnswerFreshness]:
        """Read some partitions of this instance's store. most: bytes after which the rows are cut; 0 for no limit."""
        before = self._states(run, partitions)
        all_of_store = set(partitions) >= run.store.next.keys()
        sql = statement.sql(None if all_of_store else partitions)
        rows = await self.pool.run(
            lambda: run.store.read(sql, statement.parameters, context.deadline, most), context.deadline
        )
        return rows, self._freshness(run, before, context)

    def statistics(self, name: str) -> dict[str, Any]:
        """The view as this instance knows it: its own partitions, and who owns which."""
        run = self.view(name)
        partitions = dict(run.served)
        now = time.monotonic()
        owners: dict[int, list[str]] = {}
        for partition in range(self._known_partition_count(run)):
            owners[partition] = [f"views-{n}" for n in self._candidates(run, partition)]
        return {
            "name": name,
            "topic": run.view.reads[0].name,
            "by": list(run.view.query_fields),
            "schema": run.view.schema,
            "instance": self.name,
            "state": run.figures.state,
            "error": run.figures.error if run.figures.state == "failing" else None,
            **asdict(run.statistics),
            "partitions": {
                str(p): {
                    "next": state.next,
                    "end": state.end,
                    "lag": state.end - state.next,
                    "age_ms": int((now - state.at) * 1000),
                }
                for p, state in sorted(partitions.items())
            },
            "owners": {str(p): names for p, names in owners.items()},
            "freshness": self._of(partitions.values()).data if partitions else None,
        }

    @property
    def ready(self) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """The views that are not stopped: the loaded ones, those refused with the reason, and the others with what each
        waits for."""
        runs = {name: run for name, run in sorted(self.runs.items()) if run.running}
        loaded = [name for name, run in runs.items() if run.ready]
        refused = {name: run.refused.what for name, run in runs.items() if not run.ready and run.refused}
        waiting = {name: run.waits for name, run in runs.items() if not run.ready and not run.refused}
        return loaded, refused, waiting

    @property
    def _connected_peers(self) -> PeerClient:
        if self.peers is None:
            raise NotReady("the instance is being started")
        return self.peers

    def _known_partition_count(self, run: ViewRun) -> int:
        return run.count or self.directory.count(run.view.name)

    def _partition_count(self, run: ViewRun) -> int:
        if count := self._known_partition_count(run):
            return count
        raise NotReady("the view is not known yet", got=run.figures.error or run.figures.state)

    def _partitions(self, run: ViewRun, query: ViewQuery, context: RequestContext) -> list[int]:
        """All partitions, or those that another instance asks for."""
        if not context.forwarded:
            return list(range(self._partition_count(run)))
        if not isinstance(query, PartialSearch | PartialCounts) or query.store != run.layout.version:
            raise Misdirected("the forwarding instance has another layout of the view", got=self.name)
        return sorted(set(query.partitions))

    def _candidates(self, run: ViewRun, partition: int) -> list[int]:
        """The instances that have a partition, in the order in which they are asked."""
        others = self.directory.instances_with(run.view.name, partition)
        if partition not in run.served:
            return others
        sure = [number for number in others if not self.directory.is_suspect(number)]
        doubtful = [number for number in others if self.directory.is_suspect(number)]
        return [*owner_order(partition, [self.number, *sure], max(1, settings().views_instances)), *doubtful]

    def _check_assigned(self, run: ViewRun, partitions: Sequence[int]) -> None:
        """Raise Misdirected unless all are here: a forwarded request is not forwarded again."""
        lacking = sorted(set(partitions) - run.served.keys())
        if lacking:
            raise Misdirected(f"{self.name} does not answer for these partitions", got=lacking[:20])

    async def _gather(
        self,
        run: ViewRun,
        what: str,
        partitions: list[int],
        context: RequestContext,
        read: Callable[[list[int]], Awaitable[dict[str, Any]]],
        body_for: Callable[[list[int]], bytes],
    ) -> list[dict[str, Any]]:
        """The parts of an answer, each from the first instance that gives it.

        Args:
            run: The view.
            what: The route below the view: `search`, `counts` or `batch`.
            partitions: The partitions of the query.
            context: Of the request.
            read: Reads some partitions from this instance's store.
            body_for: The body with which another instance is asked for some partitions.
        """
        if context.forwarded:
            self._check_assigned(run, partitions)
            return [await read(partitions)]
        results: list[dict[str, Any]] = []
        remaining, failed = list(partitions), set[int]()
        while remaining:
            plan: dict[int, list[int]] = defaultdict(list)
            last = set[int]()
            for partition in remaining:
                able = [number for number in self._candidates(run, partition) if number not in failed]
                if not able:
                    raise self._no_instance(run, remaining)
                plan[able[0]].append(partition)
                if len(able) == 1:
                    last.add(able[0])

            async def part(number: int, assigned: list[int], last: bool) -> dict[str, Any] | None:
                if number == self.number:
                    return await read(assigned)
                path = view_path(run.view.name, what, context)
                try:
                    answer = await self._connected_peers.ask(
                        number, "POST", path, context.deadline, content=body_for(assigned), last=last
                    )
                except PeerUnavailable:
                    return None
                if answer.status != 200:
                    raise problems.peer_error(answer.status, answer.content)
                content: dict[str, Any] = orjson.loads(answer.content)
                return content

            parts = await asyncio.gather(*(part(number, assigned, number in last) for number, assigned in plan.items()))
            remaining = []
            for (number, assigned), result in zip(plan.items(), parts, strict=True):
                if result is None:
                    failed.add(number)
                    remaining += assigned
                else:
                    results.append(result)
        return results

    def _no_instance(self, run: ViewRun, partitions: Sequence[int]) -> NotReady:
        state = run.figures.error or run.waits
        return NotReady(
            f"no instance has partitions of view {run.view.name} ready",
            got=f"partitions {sorted(partitions)[:20]}; here: {state}",
            hint="ask again: they are being loaded, or their instance is being started",
        )

    def _states(self, run: ViewRun, partitions: Iterable[int]) -> Mapping[int, PartitionState]:
        served = run.served
        try:
            return {partition: served[partition] for partition in partitions}
        except KeyError as e:
            raise NotReady(f"partition {e} is not ready here") from None

    def _freshness(
        self, run: ViewRun, before: Mapping[int, PartitionState], context: RequestContext
    ) -> AnswerFreshness:
        """How fresh the rows are that were just read.

        Args:
            run: The view.
            before: Its partitions before the rows were read.
            context: Of the request.

        Raises:
            NotReady: A partition was dropped or rebuilt meanwhile, even if it is ready again; or the rows are too old.
        """
        now = self._states(run, before)
        if any(now[partition].made != state.made for partition, state in before.items()):
            raise NotReady("the view was rebuilt meanwhile")
        fresh = self._of(before.values())
        context.allows(fresh)
        return fresh

    def _of(self, states: Iterable[PartitionState]) -> AnswerFreshness:
        now = time.monotonic()
        return AnswerFreshness.least(
            AnswerFreshness(max(0, state.end - state.next), int((now - state.at) * 1000)) for state in states
        )
