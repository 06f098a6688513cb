"""Repair of a checkpoint by the commit marker, before a query starts from it.

The marker holds the plans of the last batch that is written and of the one before, as Spark's offset log had them. So
log files that a crash took are put back, and a checkpoint that did not write the marker is recognised: by its offsets,
never by the number of a batch alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.checkpoint.offset_log import BatchPlan, commit_entry, committed_watermark
from penstock.engine.jvm import bridge
from penstock.errors import Blocked

if TYPE_CHECKING:
    from penstock.engine.jvm.hadoop_fs import HadoopFolder
    from penstock.model.output import CommitMarker

# Spark's error conditions for state that cannot be read. A store that another thread still holds is not damaged.
STATE_ERROR = re.compile(
    r"CANNOT_LOAD_STATE_STORE(?!\.UNRELEASED)|STATEFUL_OPERATOR_MISSING_STATE|StateSchemaCompatibilityChecker"
)
ERROR_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
# A file of Spark's state; its version is one more than the batch that wrote it.
STATE_FILE = re.compile(r"(\d+)\.(?:changelog|zip|delta|snapshot)")
# Spark's description of a step of state, which names the files of its schema by their whole path.
STATE_METADATA = re.compile(r"(state/\d+)/_metadata/v2/\d+")
BATCH_ERROR = "FOREACH_BATCH_USER_FUNCTION_ERROR"
REBUILD_HINT = "rebuild its state from its topics with `penstock streams rebuild {name}`"
RESET_HINT = "`penstock streams reset {name} --to ...` says where to begin instead; `--dry-run` shows what that means"


class UnmarkedBatches(Blocked):
    """Batches are committed without a marker. ended: the last one."""

    def __init__(self, what: str, *, got: str, hint: str, ended: int) -> None:
        super().__init__(what, got=got, hint=hint)
        self.ended = ended


class CheckpointRecovery:
    """One repair of a checkpoint.

    Attributes:
        repairs: What was repaired, a sentence each.
    """

    def __init__(
        self,
        name: str,
        folder: HadoopFolder,
        mark: CommitMarker,
        *,
        stateful: bool,
        anew: bool = False,
        continues: bool = False,
        restores: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is read yet.

        Args:
            name: The name of the stream.
            folder: The checkpoint.
            mark: The marker of the last batch that is written.
            stateful: Whether the state must have taken in each batch.
            anew: Whether the checkpoint began with a reset: then the marker may be of the checkpoint before.
            continues: Whether the checkpoint is of a new version that goes on after the marker of the version before:
                then the marker says nothing of its batches.
            restores: Whether the state can be rebuilt.
        """
        self._name, self._folder, self._marker, self._stateful, self._anew = name, folder, mark, stateful, anew
        self._restores, self._continues = restores, continues
        plans = {} if continues else mark.plans
        self._plans = {n: plan for n, text in plans.items() if (plan := BatchPlan.read(text))}
        self._texts: dict[str, str | None] = {}
        self.repairs: list[str] = []

    def run(self) -> list[str]:
        """Repair what can be repaired for certain; Blocked where it cannot be."""
        planned, done = self._folder.list_numbers("offsets"), self._folder.list_numbers("commits")
        self._remove_damaged_starts()
        if self._check_query(planned, done):
            top = self._last_planned(planned)
            self._check_not_ahead(top)
            top = self._add_written(top)
            self._repair_commits(top)
            self._compare_plans(top)
        self._clear_first_batch()
        self.repair_state()
        return self.repairs

    def repair_state(self) -> None:
        """Repair what needs no marker: state of batches that were not committed, and of a folder that was moved."""
        state_files = self._folder.list_files("state")
        self._remove_uncommitted_state(state_files)
        self._relocate_state_schemas(state_files)

    def _check_query(self, planned: list[int], done: list[int]) -> bool:
        """Whether the marker is of the checkpoint's query. A query that has written nothing needs no marker."""
        text = self._read("metadata")
        query = _id(text)
        is_missing = query is None and not (planned or done or self._anew) and bool(self._marker.query)
        if is_missing and self._stateful:
            raise Blocked(
                f"the checkpoint of stream {self._name} is not there, though it wrote up to batch {self._marker.batch}",
                got=f"{self._folder.path} is empty",
                hint="see that its disk is mounted and that PENSTOCK_CHECKPOINTS names it, or put the folder back; "
                f"where it is lost, {recovery_options(self._name, restores=self._restores())}",
            )
        if query is None and (planned or done or is_missing) and self._marker.query:
            query = self._marker.query
            self._replace("metadata", json.dumps({"id": query}), "the query's id is that of its marker")
        elif query is None and done:
            raise self._damaged("metadata")
        elif query is None and text is not None:
            self._remove("metadata", "a query that has written nothing gets a new id")
        if query == self._marker.query:
            return True
        if self._continues or (not done and (self._anew or not self._marker.query)):
            for n in planned:
                if not self._plan(n):
                    self._remove(f"offsets/{n}", f"batch {n}, of which nothing is written, is planned again")
            return False
        if not self._marker.query:
            raise self._unmarked(
                "has a checkpoint and no commit marker: the topic of markers was emptied, or it is another platform's",
                f"the last batch that ended is {done[-1]}",
                done[-1],
            )
        raise self._inconsistent(
            "has a checkpoint of another query than the one that wrote last",
            f"query {query}, and {self._marker.query} wrote up to batch {self._marker.batch}",
        )

    def _last_planned(self, planned: list[int]) -> int:
        """The last batch whose plan can be read or is in the marker."""
        while planned:
            last = planned[-1]
            if self._plan(last):
                return last
            if last in self._plans:
                self._replace(
                    f"offsets/{last}", self._plans[last].text, f"the plan of batch {last} is that of its marker"
                )
                return last
            if last <= self._marker.batch or self._read(f"commits/{last}") is not None:
                raise self._damaged(f"offsets/{last}")
            self._remove(f"offsets/{last}", f"batch {last}, of which nothing is written, is planned again")
            planned.pop()
        return -1

    def _check_not_ahead(self, top: int) -> None:
        ended = top if self._commit(top) is not None else top - 1
        if ended > self._marker.batch:
            raise self._unmarked(
                "has batches in its checkpoint whose output has no commit marker: the topic of markers lost them, and "
                "perhaps the topics of its output did as well",
                _format_difference(self._plans.get(self._marker.batch), self._plan(ended)),
                ended,
            )

    def _add_written(self, top: int) -> int:
        """Add plans of written batches that the log lacks; the last plan then."""
        last = self._marker.batch
        if top >= last or (top == last - 1 and self._plan(top) and self._commit(top) is None):
            # In the latter case the last planned batch runs first, for its state.
            return top
        # Without state a written batch need not run again.
        runs_again = self._stateful or last not in self._plans
        if runs_again and top + 1 in self._plans and (top < 0 or self._commit(top) is not None):
            text = self._plans[top + 1].text
            self._replace(
                f"offsets/{top + 1}", text, f"the plan of batch {top + 1}, which is written, is that of its marker"
            )
            return top + 1
        if self._stateful or last not in self._plans:
            raise self._inconsistent(
                "has an older checkpoint than the one that wrote last, and its state lacks what was read since",
                _format_difference(self._plan(top), self._plans.get(last)),
            )
        plan = self._plans[last]
        self._replace(f"offsets/{last}", plan.text, f"reading goes on behind batch {last}, which is written")
        self._replace(f"commits/{last}", commit_entry(plan.watermark_ms), "")
        return last

    def _repair_commits(self, top: int) -> None:
        """A batch is planned, so the one before was committed; the last one runs again if its commit is not certain."""
        plan = self._plan(top)
        if plan and top > 0 and self._commit(top - 1) is None:
            self._replace(f"commits/{top - 1}", commit_entry(plan.watermark_ms), f"batch {top - 1} was committed")
        for n in self._folder.list_numbers("commits"):
            if n > top or (n == top and self._commit(n) is None):
                self._remove(f"commits/{n}", f"batch {n} runs again")

    def _compare_plans(self, top: int) -> None:
        """The log and the marker must say the same of written batches; Spark reads the last two."""
        for n in range(max(0, top - 1), top + 1):
            plan, written = self._plan(n), self._plans.get(n)
            if plan and (written is None or written.sources == plan.sources):
                continue
            if written is None:
                raise self._damaged(f"offsets/{n}")
            if plan and self._commit(n) is not None:
                raise self._inconsistent(
                    "has other offsets in its checkpoint than were written under the same number",
                    f"batch {n}: {_format_difference(plan, written)}",
                )
            self._replace(
                f"offsets/{n}", written.text, f"the plan of batch {n}, which is written, is that of its marker"
            )

    def _clear_first_batch(self) -> None:
        """Without a planned batch, remove what a first batch began to write: Spark starts in no folder that has it."""
        if self._folder.list_numbers("offsets") or self._folder.list_numbers("commits"):
            return
        for name in ("offsets", "commits", "state"):
            if self._folder.list_names(name):
                self._folder.delete_folder(name)
                self._record(name, "what the first batch had begun to write is removed")

    def _remove_uncommitted_state(self, state_files: list[str]) -> None:
        """Remove state of batches that were not committed, as they run again: Spark never replaces a file that exists,
        and a power cut may have left it incomplete."""
        ended = max(self._folder.list_numbers("commits"), default=-1)
        names = [(name, STATE_FILE.fullmatch(name.rpartition("/")[2])) for name in state_files]
        if uncommitted := [name for name, match in names if match and int(match[1]) > ended + 1]:
            for name in uncommitted:
                self._folder.delete(name)
            self._record("state", f"what was written of it behind batch {ended} is removed, as it is written again")

    def _relocate_state_schemas(self, state_files: list[str]) -> None:
        """Let the state of a checkpoint that was moved or copied find its schemas here, not where it was before."""
        for name in state_files:
            if match := STATE_METADATA.fullmatch(name):
                text = self._read(name) or ""
                if (relocated := _relocate_schemas(text, f"{self._folder.uri}/{match[1]}")) != text:
                    self._replace(name, relocated, "the schemas of the state are those in this folder")

    def _remove_damaged_starts(self) -> None:
        """Remove damaged start offsets: Spark determines them again, and needs them for the first batch only."""
        for source in self._folder.list_names("sources"):
            name = f"sources/{source}/0"
            text = self._read(name)
            if text is not None and "{" not in text:
                self._remove(name, "where its source began is lost")

    def _plan(self, n: int) -> BatchPlan | None:
        if n < 0:
            return None
        plan = BatchPlan.read(self._read(f"offsets/{n}") or "")
        other = next(iter(self._plans.values()), plan)
        # Whole lines may be missing too.
        return plan if plan and other and len(plan.sources) == len(other.sources) else None

    def _commit(self, n: int) -> int | None:
        return committed_watermark(self._read(f"commits/{n}") or "") if n >= 0 else None

    def _read(self, name: str) -> str | None:
        """The text of a file; empty if it is damaged, None if there is none."""
        if name not in self._texts:
            self._texts[name] = self._folder.read_verified(name)
        return self._texts[name]

    def _replace(self, name: str, text: str, repair: str) -> None:
        self._folder.replace(name, text)
        self._texts[name] = text
        self._record(name, repair)

    def _remove(self, name: str, repair: str) -> None:
        self._folder.delete(name)
        self._texts[name] = None
        self._record(name, repair)

    def _record(self, name: str, repair: str) -> None:
        if repair:
            self.repairs.append(f"{name}: {repair}")

    def _damaged(self, file: str) -> Blocked:
        return damaged_checkpoint(self._name, f"{self._folder.path}/{file}", restores=self._restores())

    def _unmarked(self, what: str, got: str, ended: int) -> Blocked:
        for n in range(max(0, ended - 1), ended + 1):
            if not self._plan(n):
                return self._damaged(f"offsets/{n}")
        hint = f"`penstock streams go-on {self._name}` goes on from the checkpoint; what it wrote may be lost, or twice"
        return UnmarkedBatches(f"stream {self._name} {what}", got=got, hint=hint, ended=ended)

    def _inconsistent(self, what: str, got: str) -> Blocked:
        return Blocked(
            f"stream {self._name} {what}", got=got, hint=recovery_options(self._name, restores=self._restores())
        )


def is_unreadable_state(error: BaseException) -> bool:
    """Whether a batch failed because its state cannot be read.

    Of each cause only the first error condition counts, which is Spark's own: later text may be a record's.
    """
    firsts = (ERROR_CONDITION.search(text) for _, text in bridge.error_chain(error))
    return any(first and STATE_ERROR.match(first[1]) for first in firsts)


def is_unreadable_at_start(error: BaseException | None) -> bool:
    """Whether a query failed before its first batch because its state cannot be read."""
    text = _with_stacks(error)
    return BATCH_ERROR not in text and bool(STATE_ERROR.search(text))


def _with_stacks(cause: BaseException | None) -> str:
    """The text of an error and of its causes, with the JVM's stack traces."""
    texts = []
    while cause is not None:
        texts += [str(cause), str(getattr(cause, "_stackTrace", ""))]
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def recovery_options(name: str, *, restores: bool) -> str:
    """The ways to go on without the old state."""
    stopped = f"stop it and {REBUILD_HINT.format(name=name)}; or " if restores else ""
    return stopped + RESET_HINT.format(name=name)


def damaged_checkpoint(name: str, what: str, *, restores: bool = False) -> Blocked:
    """The error of a checkpoint that cannot be repaired."""
    return Blocked(
        f"the checkpoint of stream {name} is damaged",
        got=what,
        hint="nothing, if the disk is full or away: it is tried again. Else restore the folder, if there is a copy; "
        f"or {recovery_options(name, restores=restores)}",
    )


def _id(text: str | None) -> str | None:
    try:
        metadata = json.loads(text or "")
    except ValueError:
        return None
    return str(metadata["id"]) if isinstance(metadata, dict) and "id" in metadata else None


def _relocate_schemas(text: str, folder: str) -> str:
    """The metadata of a step of state with its schemas in a folder; unchanged if they are, or if it is damaged."""
    version, _, metadata = text.partition("\n")
    try:
        step = json.loads(metadata)
    except ValueError:
        return text
    before = json.dumps(step)
    for store in step["stateStoreInfo"]:
        # The folder of a store, and the file.
        names = [path.rsplit("/", 2)[1:] for path in store["stateSchemaFilePaths"]]
        store["stateSchemaFilePaths"] = ["/".join((folder, "_stateSchema", *name)) for name in names]
    after = json.dumps(step)
    return text if after == before else f"{version}\n{after}"


def _format_difference(old: BatchPlan | None, newer: BatchPlan | None) -> str:
    """The offsets that are in doubt, by partition, the last one included."""
    if newer is None:
        return "nothing is known of its offsets"
    ranges = []
    for topic, parts in newer.ends.items():
        before = old.ends.get(topic, {}) if old else {}
        for p, at in parts.items():
            first, end = sorted((before.get(p, 0), at))
            if first < end:
                ranges.append(f"{topic}[{p}] {first} to {end - 1}")
    listed = ", ".join(ranges[:20]) + (f" and {len(ranges) - 20} more partitions" if len(ranges) > 20 else "")
    return f"in doubt are offsets {listed}" if ranges else "the same offsets, of other partitions"
