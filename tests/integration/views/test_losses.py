"""What may happen to an instance of the views and to its store, over a real broker and real processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin, ensure_topics
from penstock.model.topic import Topic
from penstock.views.cluster.partition_assignment import assigned_partitions
from tests.support.caches import clear_caches
from tests.support.view_instances import PARTITIONS, TOPIC, Fleet, agent, serving
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

NAMES = [f"agent-{n:03d}" for n in range(40)]


def value(n: int) -> dict[str, Any]:
    return {"account": f"acc-{n % 5}", "platform": "linux", "labels": {}, "online": True, "seen": n, "load": 0.5}


class Load:
    """Requests keys of one instance, one by one; counts the answers."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.right = 0
        self.wrong: list[str] = []
        self.refused: list[float] = []
        self._url, self._done = fleet.url(number), threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        n = 0
        with httpx.Client(base_url=self._url, timeout=10, trust_env=False) as client:
            # The pause leaves the processor to the instances.
            while not self._done.wait(0.002):
                n = (n + 1) % len(NAMES)
                found = client.get(f"/v1/views/fleet/rows/{NAMES[n]}")
                if found.status_code == 503:
                    assert found.headers["retry-after"]
                    self.refused.append(time.monotonic())
                elif found.status_code == 200 and found.json()["value"] == value(n):
                    self.right += 1
                else:
                    self.wrong.append(found.text)

    def heard(self) -> None:
        """Wait until it has heard of all keys twice more without a refusal."""
        wait_until(lambda: self._goes_on(self.right + 2 * len(NAMES), len(self.refused)))

    def _goes_on(self, right: int, refused: int) -> bool:
        wait_until(lambda: self.right >= right or len(self.refused) > refused, every=0.02)
        return len(self.refused) == refused

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(20)


@contextmanager
def filled(folder: Path, broker: Broker, instances: int, standby: int = 0, **given: object) -> Iterator[Fleet]:
    with serving(folder, broker.bootstrap, instances, standby, **given) as fleet:
        fleet.put(agent(name, value(n)) for n, name in enumerate(NAMES))
        fleet.start(*range(1, instances + 1))
        fleet.known(*range(1, instances + 1))
        yield fleet


def test_an_instance_is_killed_under_load_and_comes_back(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 2) as fleet, Load(fleet, 1) as load:
        load.heard()
        fleet.kill(2)
        wait_until(lambda: load.refused, what="keys of the dead instance are refused")
        counted = fleet.ask(1, "counts", {})
        assert counted.status_code == 503, counted.text
        fleet.start(2)
        load.heard()
        assert "is read from its topic's beginning" not in fleet.log(2)
        assert fleet.ask(1, "counts", {}).json()["total"] == len(NAMES)
        fleet.stop(2)
        wait_until(lambda: fleet.ask(1, "counts", {}).status_code == 503)
    assert load.wrong == []


@pytest.mark.long
def test_a_standby_copy_answers_at_once_when_an_owner_dies(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 2, standby=1) as fleet, Load(fleet, 1) as load:
        both = {("views-1", "views-2"), ("views-2", "views-1")}
        wait_until(lambda: set(map(tuple, fleet.get(1, "/v1/views/fleet").json()["owners"].values())) == both)
        assert fleet.ask(1, "counts", {}).json()["total"] == len(NAMES)
        load.heard()
        fleet.kill(2)
        load.heard()
        assert fleet.ask(1, "counts", {}).json()["total"] == len(NAMES)
        assert len(fleet.ask(1, "search", {"limit": 1000}).json()["rows"]) == len(NAMES)
    assert (load.wrong, load.refused) == ([], [])


@pytest.mark.long
def test_another_layout_is_built_while_the_standby_answers_by_the_old_one(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 2, standby=1) as fleet:
        jobs = tmp_path / "project" / "jobs" / "fleet" / "kept.py"
        jobs.write_text(jobs.read_text().replace('"online", "labels"', '"labels", "load"'))
        for number, other in ((1, 2), (2, 1)):
            # As the release of one instance after the other.
            with Load(fleet, other) as load:
                load.heard()
                fleet.stop(number)
                fleet.start(number)
                load.heard()
            assert (load.wrong, load.refused) == ([], [])
            assert "the store has another schema or other query fields" in fleet.log(number)
            fleet.known(1, 2)
        assert len(fleet.ask(1, "search", {"where": {"seen": 7, "load": 0.5}}).json()["rows"]) == 1
        assert fleet.ask(1, "search", {"where": {"online": True}}).status_code == 400


@pytest.mark.long
def test_partitions_assigned_to_another_instance_are_never_answered_wrong(
    fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is right or refused, whichever instance is asked, while one of two knows of the other."""
    with serving(tmp_path, fresh_broker.bootstrap, 2, PENSTOCK_VIEWS_INSTANCES=1) as fleet:
        fleet.put(agent(name, value(n)) for n, name in enumerate(NAMES))
        fleet.start(1)
        fleet.known(1)
        monkeypatch.setenv("PENSTOCK_VIEWS_INSTANCES", "2")
        clear_caches()
        fleet.control.sync(catalog.load())
        fleet.start(2)

        def to_response(number: int) -> int:
            rows = {n: fleet.row(number, name) for n, name in enumerate(NAMES)}
            assert all(found in (value(n), 503) for n, found in rows.items()), rows
            return sum(found != 503 for found in rows.values())

        assert (to_response(1), to_response(2)) == (len(NAMES), len(NAMES))
        fleet.put([agent(NAMES[0], value(0)), agent("later", value(1))])
        fleet.stop(1)
        assert 0 < to_response(2) < len(NAMES)
        assert fleet.ask(2, "counts", {}).status_code == 503
        fleet.start(1)
        fleet.known(1, 2)
        assert again(fleet) == 0
        for number in (1, 2):
            assert to_response(number) == len(NAMES)
            assert fleet.ask(number, "counts", {}).json()["total"] == len(NAMES) + 1
            kept = {str(p) for p in assigned_partitions(number, PARTITIONS, 2, 0)}
            assert fleet.get(number, "/v1/views/fleet").json()["partitions"].keys() == kept


def again(fleet: Fleet) -> int:
    """How often the store was made anew, and why the last time, for the message."""
    return fleet.log(1).count("is read from its topic's beginning")


@pytest.mark.long
def test_a_store_that_is_damaged_or_of_other_fields_is_rebuilt(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 1) as fleet:
        fleet.stop(1)
        fleet.put([agent(NAMES[0], None), agent("late", value(7))])
        fleet.start(1)
        assert again(fleet) == 0
        assert fleet.row(1, NAMES[0]) == 404
        assert fleet.row(1, "late") == value(7)

        def beginning(change: Any) -> None:
            fleet.stop(1)
            change(fleet.store(1))
            fleet.start(1)
            assert again(fleet) == 1, fleet.log(1)
            assert fleet.ask(1, "counts", {}).json()["total"] == len(NAMES)

        # Other damages: tests/unit/views/test_store.py.
        def torn(store: Path) -> None:
            content = bytearray(store.read_bytes())
            content[4096:-1] = bytes(len(content) - 4097)
            store.write_bytes(content)

        beginning(torn)
        jobs = tmp_path / "project" / "jobs" / "fleet" / "kept.py"
        beginning(lambda _: jobs.write_text(jobs.read_text().replace('"online", "labels"', '"labels"')))
        assert fleet.ask(1, "search", {"where": {"online": True}}).status_code == 400


def test_a_recreated_topic_is_read_from_its_beginning(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 1) as fleet:
        bootstrap = fresh_broker.bootstrap
        for done in admin(bootstrap).delete_topics([TOPIC]).values():
            done.result(30)
        topic = Topic(TOPIC, partitions=PARTITIONS, compacted=True)
        wait_until(lambda: TOPIC not in admin(bootstrap).list_topics(timeout=10).topics)
        ensure_topics([topic], bootstrap)
        fleet.put([agent("only", value(1))])
        wait_until(lambda: fleet.row(1, "only") == value(1), what=f"the new topic is read: {fleet.rows[1].log}")
        assert fleet.ask(1, "counts", {}).json()["total"] == 1
        assert fleet.row(1, NAMES[0]) == 404
        assert "deleted and made again" in fleet.log(1)


def said(fleet: Fleet) -> str:
    """The view's last error, as it was reported."""
    row = fleet.control.progress().get("fleet@1")
    return (row.error if row else None) or ""


def test_records_in_another_partition_than_their_keys_name_are_refused(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled(tmp_path, fresh_broker, 1) as fleet:
        astray = agent("astray", value(1))
        fleet.put([type(astray)(TOPIC, astray.key, astray.value, (astray.partition + 1) % PARTITIONS)])
        wait_until(lambda: "are in other partitions than their keys say" in said(fleet))
        wait_until(lambda: fleet.control.progress()["fleet@1"].state == "failing")
        wait_until(lambda: fleet.row(1, NAMES[0]) == 503, what="nothing is answered that may be wrong")
        assert "write a tombstone with that key into partition" in said(fleet)
        assert "are in other partitions than their keys say" in fleet.get(1, "/v1/ready").json()["detail"]
        fleet.put([type(astray)(TOPIC, astray.key, None, (astray.partition + 1) % PARTITIONS), astray])
        wait_until(lambda: fleet.row(1, "astray") == value(1), what="the way out that it told of is one")
        assert fleet.status(1, "/v1/ready") == 200


def test_a_token_is_required_and_forwarded_to_other_instances(fresh_broker: Broker, tmp_path: Path) -> None:
    with filled_with_token(tmp_path, fresh_broker) as fleet:
        path = "/v1/views/fleet/rows/agent-001"
        for head in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic c2VjcmV0"}):
            found = fleet.get(1, path, headers=head)
            assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
            assert found.headers["content-type"] == "application/problem+json"
        right = {"authorization": "Bearer secret-17"}
        wait_until(lambda: fleet.get(1, path, headers=right).status_code == 200)
        wait_until(lambda: fleet.get(2, path, headers=right).status_code == 200, what="it is forwarded with the token")
        assert fleet.status(1, "/v1/live") == 200


@contextmanager
def filled_with_token(folder: Path, broker: Broker) -> Iterator[Fleet]:
    with serving(folder, broker.bootstrap, 2, PENSTOCK_VIEWS_TOKEN="secret-17") as fleet:
        fleet.put(agent(name, value(n)) for n, name in enumerate(NAMES))
        fleet.start(1, 2)
        yield fleet
