"""`penstock streams reset` and `remove`: what they ask before they do anything."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from typer.testing import CliRunner

from penstock.catalog import Catalog, build
from penstock.cli import app, streams
from penstock.control import Actor, Control, ProgressRow, connect
from penstock.engine.checkpoint.offset_log import TopicOffsets
from penstock.engine.commit.dead_letter_index import DeadLetterIndex
from penstock.engine.operations import removal, reset_plan
from penstock.engine.operations.reset import RESETS_KEPT, Reset, processed_offsets, resets_of
from penstock.engine.operations.reset_plan import PartitionReset, ResetPlan, parse_target
from penstock.errors import BrokerError, PenstockError
from penstock.kafka import cleanup, commit_marker, dead_letters
from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.transactions import marker_partition
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.caches import clear_caches
from tests.support.control_tables import create_tables

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import Checkpoint

ME = Actor("ann", "cli")


def stream(name: str, given: Input) -> Stream:
    return Stream(
        name, "a", {"rows": given}, lambda rows: rows, TopicOutput(Topic(f"{name}-out"), value="value"), Stateless()
    )


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    made = build(
        [
            stream("s", Input(Topic("t"))),
            stream("all", Input(pattern="t.*")),
            stream("strict", Input(pattern=r"strict\..*", on_data_loss="fail")),
        ]
    )
    monkeypatch.setattr("penstock.catalog.load", cache(lambda: made))
    return made


@pytest.fixture
def control(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", str(tmp_path / "checkpoints"))
    clear_caches()
    found = connect()
    create_tables(found)
    found.sync(catalog)
    yield found
    found.engine.dispose()
    clear_caches()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> list[str]:
    """The resets that were asked for; each would read four records again, and go against one thing."""
    found: list[str] = []
    plan = ResetPlan(Reset({"t": {0: 1}}), [PartitionReset("t", 0, 0, 9, 5, 1)], ["a note"], ["a reason"])
    monkeypatch.setattr(streams, "_plan_reset", lambda *_: (plan, found.append))
    monkeypatch.setattr("penstock.catalog.partial_catalog", cache(lambda: (catalog, [])))
    return found


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["streams", *args])
    assert result.exit_code == code, result.output
    return result.output


def test_a_reset_needs_a_stopped_stream_and_an_output_that_stays_right(control: Control, asked: list[str]) -> None:
    said = run("reset", "s", "--to", "earliest", "--dry-run")
    assert all(part in said for part in ("4 records again", "a note", "a reason"))
    said = run("reset", "s", "--to", "earliest", code=1)
    assert "its desired state is on" in said
    assert "a note" not in said, "Spark was started to refuse it"
    assert "no such stream; got: nobody" in run("reset", "nobody", "--to", "earliest", "--anyway", code=1)
    control.set_desired(["s"], "off", ME)
    control.take_lease("s", "i", 60)
    control.report([ProgressRow("s", "a", "i", state="idle")], keep=False)
    assert "its driver still runs it" in run("reset", "s", "--to", "earliest", code=1)
    control.report([ProgressRow("s", "a", "i", state="stopped")], keep=False)
    assert "would not be right after this reset; got: a reason" in run("reset", "s", "--to", "earliest", code=1)
    assert asked == []
    assert "penstock streams start s" in run("reset", "s", "--to", "earliest", "--anyway", "-m", "why")
    assert Reset.read(asked[0]).starts == {"t": {0: 1}}
    assert [(a["verb"], a["detail"]) for a in control.actions(1)] == [("reset", "why: to earliest")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("latest", "latest"),
        ("1970-01-01T00:01:00", 60_000),
        ("1970-01-01T01:01:00+01:00", 60_000),
        ("t:0=5,u:x:1=7", {("t", 0): 5, ("u:x", 1): 7}),
    ],
)
def test_where_to_begin(text: str, found: object) -> None:
    assert parse_target(text) == found


@pytest.mark.parametrize("text", ["", "yesterday", "t=5", "t:0=", "t:a=1"])
def test_an_invalid_reset_target_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="not a position to start"):
        parse_target(text)


SAME = {"t": "x"}


@pytest.mark.parametrize(
    ("before", "mark", "seen"),
    [
        (None, CommitMarker("q", 3, {"t": {0: 9}, "gone": {0: 1}}, SAME), {"t": {0: 9}}),
        (None, CommitMarker("q", 3, {"t": {0: 9}}), {"t": {0: 9}}),
        (None, CommitMarker("q", 3, {"t": {0: 9}}, {"t": "old"}), {}),
        (Reset({"t": {0: 2}}, None, SAME, {"t": {0: 9}}), CommitMarker("q", 3, {"t": {0: 4}}, SAME), {"t": {0: 9}}),
        (Reset({"t": {0: 2}}, None, SAME, {"t": {0: 9}}), CommitMarker("q", 3, {"t": {0: 11}}, SAME), {"t": {0: 11}}),
        (Reset({"t": {0: 20}}, None, SAME, {"t": {0: 9}}), CommitMarker("q", 3, {"t": {0: 25}}, SAME), {"t": {0: 9}}),
        (
            Reset({"t": {0: 20}}, None, {"t": "old"}, {"t": {0: 9}}),
            CommitMarker("q", 3, {"t": {0: 5}}, SAME),
            {"t": {0: 5}},
        ),
    ],
    ids=["first", "mark of before", "made again", "not there yet", "further", "passed over", "made again since"],
)
def test_what_was_looked_at_before_a_reset(
    before: Reset | None, mark: CommitMarker, seen: dict[str, dict[int, int]]
) -> None:
    assert processed_offsets(before, mark, SAME) == seen


def test_a_marker_names_the_resets_before_the_last_one() -> None:
    plan = 'v1\n{"batchWatermarkMs": 7000}\n{}'
    mark = CommitMarker("q", 3, {}, plans={3: plan}, reset_id="r2", reset_floor=5, earlier_resets=[("r1", None, 1)])
    found = resets_of(CommitMarker.read(mark.value()))
    assert found == [("r1", None, 1), ("r2", 5, 7000)]
    assert Reset.read(Reset({}, earlier=found).text()).earlier == tuple(found)
    assert resets_of(CommitMarker("q", 3, {})) == []
    many = CommitMarker("q", 3, {}, reset_id="last", earlier_resets=[(str(n), None, n) for n in range(50)])
    assert [reset_id for reset_id, *_ in resets_of(many)][-2:] == ["49", "last"]
    assert len(resets_of(many)) == RESETS_KEPT


class Asked:
    """A checkpoint as a reset asks it. wrote: whether the mark is of its query."""

    def __init__(self, *, wrote: bool, begun: bool, behind: TopicOffsets) -> None:
        self._wrote, self.has_commits, self._behind = wrote, begun, behind

    def wrote_marker(self, _mark: CommitMarker) -> bool:
        return self._wrote

    def pending_offsets(self) -> tuple[TopicOffsets, TopicOffsets]:
        return self._behind, self._behind


AGAIN = Reset({"t": {0: 2, 1: 3}}, None, SAME)


@pytest.mark.parametrize(
    ("checkpoint", "before", "mark", "found"),
    [
        (
            Asked(wrote=True, begun=True, behind={"t": {0: 5}}),
            None,
            CommitMarker("q", 3, {"t": {0: 9}}, SAME),
            {0: 9},
        ),
        (Asked(wrote=True, begun=True, behind={}), None, CommitMarker("q", 3, {"t": {0: 9, 1: 4}}), {0: 9, 1: 4}),
        (
            Asked(wrote=True, begun=True, behind={"t": {0: 9}}),
            None,
            CommitMarker("q", 3, {"t": {0: 5}}, SAME),
            {0: 9},
        ),
        (
            Asked(wrote=True, begun=True, behind={"t": {0: 5}}),
            None,
            CommitMarker("q", 3, {"t": {0: 9}}, {"t": "old"}),
            None,
        ),
        (
            Asked(wrote=False, begun=True, behind={"t": {0: 5}}),
            AGAIN,
            CommitMarker("q", 3, {"t": {0: 9}}, SAME),
            {0: 5},
        ),
        (
            Asked(wrote=False, begun=False, behind={}),
            AGAIN,
            CommitMarker("q", 3, {"t": {0: 9}}, SAME),
            {0: 2, 1: 3},
        ),
    ],
    ids=["written and not noted", "damaged", "mark lost", "made again", "another's mark", "has not begun"],
)
def test_what_would_be_read_next(checkpoint: Asked, before: Reset | None, mark: CommitMarker, found: object) -> None:
    assert reset_plan._read(cast("Checkpoint", checkpoint), mark, before, SAME).get("t") == found


def test_a_mark_that_stays_behind_an_open_transaction_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = (COMMITS.name, marker_partition(COMMITS, "s"))
    monkeypatch.setattr(commit_marker, "OPEN_TRANSACTION_TIMEOUT", 0.2)
    monkeypatch.setattr(commit_marker, "admin", lambda _: None)
    monkeypatch.setattr(commit_marker, "partition_counts", lambda *_: {COMMITS.name: 16})
    monkeypatch.setattr(commit_marker, "log_end_offsets", lambda *_: {place: 5})
    monkeypatch.setattr(commit_marker, "end_offsets", lambda *_: {place: 3})
    with pytest.raises(BrokerError, match="open transaction at 3, and ends at 5"):
        commit_marker.read_commit_marker("s", "b")
    monkeypatch.setattr(commit_marker, "partition_counts", lambda *_: {})
    assert commit_marker.read_commit_marker("s", "b") == NO_COMMIT


def test_only_what_lies_beside_already_is_not_kept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def letter(of: str, offset: str) -> DeadLetter:
        return DeadLetter("dead", 0, 0, None, None, {"topic": "t", "partition": "0", "offset": offset, "stream": of})

    monkeypatch.setattr(
        dead_letters, "read_dead_letters", lambda *_: [letter("s", "3"), letter("other", "4"), letter("s", "?")]
    )
    monkeypatch.setattr("penstock.engine.commit.dead_letter_index.partition_counts", lambda *_: {})
    kept = DeadLetterIndex(stream("s", Input(Topic("t"))), "b", Reset({}, None, SAME, {"t": {0: 7}}))
    for offset, target, has in ((3, "dead", 1), (3, "late", 0), (4, "dead", 0), (6, "", 1), (7, "", 0), (9, "dead", 0)):
        assert kept.contains({"topic": "t", "partition": 0, "offset": offset}, target) == bool(has), (offset, target)
    assert not DeadLetterIndex(stream("s", Input(Topic("t"))), "b", None).contains(
        {"topic": "t", "partition": 0, "offset": 3}, "dead"
    )


class Broker:
    """What is asked of a broker; deleted: what was deleted there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deleted: list[str] = []
        topics = dict.fromkeys(("t", "s-out", "told", "strict.x", "penstock.commits", "__consumer_offsets"), 1)
        monkeypatch.setattr(removal, "partition_counts", lambda *_: topics)
        monkeypatch.setattr(removal, "delete_commit_marker", lambda name, _: self.deleted.append(f"mark of {name}"))
        monkeypatch.setattr(cleanup, "group_names", lambda *_: {"penstock.gone-too", "penstock.s", "others"})
        monkeypatch.setattr(cleanup, "topics_of_group", lambda *_: ["t"])
        monkeypatch.setattr(cleanup, "delete_group", lambda _, group, __: self.deleted.append(group))
        monkeypatch.setattr(cleanup, "delete_topics", lambda _, names, __: self.deleted.extend(names))


@pytest.mark.processes
def test_what_a_stream_that_is_gone_has_left_is_named_and_removed_by_choice(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(monkeypatch)
    for name in ("gone", "gone.before", "gone-too"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    said = run("remove", "gone")
    assert "penstock.gone" in said
    assert [line.split()[2] for line in said.splitlines() if line.startswith("unused topic")] == ["told"]
    assert "it is declared" in run("remove", "s", code=1)
    said = run("remove", "gon", "--topic", "told", code=2)
    assert "there is no removed stream named 'gon'; did you mean gone or gone-too?" in said
    assert "take one of: gone, gone-too" in run("remove", "elsewhere", code=2), "those that are declared are none"
    for used in ("t", "s-out", "strict.x", "penstock.commits"):
        assert "used by others" in run("remove", "gone", "--topic", used, code=1)
    assert "does not have" in run("remove", "gone", "--topic", "nowhere", code=1)
    control.take_lease("gone", "i", 60)
    assert "still holds the lease" in run("remove", "gone", "--checkpoint", code=1)
    control.drop_leases(["gone"], "i")
    run("remove", "gone", "--checkpoint", "--topic", "told", "--dry-run")
    assert broker.deleted == []
    assert "removed of gone: checkpoint, told" in run("remove", "gone", "--checkpoint", "--topic", "told")
    assert broker.deleted == ["mark of gone", "penstock.gone", "told"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["gone-too"]
    assert [action["verb"] for action in control.actions(1)] == ["remove"]
    assert "removed of gone: told" in run("remove", "gone", "--topic", "told"), "nothing of it is left but its name"


@pytest.mark.processes
def test_a_removal_that_ended_at_the_commit_marker_is_repeated(
    control: Control,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that nobody started, stopped or reset by hand is known by what it has left alone."""
    broker = Broker(monkeypatch)
    (tmp_path / "checkpoints" / "gone").mkdir(parents=True)

    def away(*_: object) -> NoReturn:
        raise BrokerError("the commit marker of gone was not removed")

    with monkeypatch.context() as patch:
        patch.setattr(removal, "delete_commit_marker", away)
        assert "was not removed" in run("remove", "gone", "--checkpoint", code=1)
    run("remove", "gone", "--checkpoint")
    assert broker.deleted == ["mark of gone", "penstock.gone"]
