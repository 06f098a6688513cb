"""The clauses of a stream in SQL; `penstock.model.sql_stream` says what each means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast, get_args

from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import DeclarationError
from penstock.model.expectation import Expectation, OnViolation
from penstock.model.fold import VARIABLE_NAMES, VARIABLE_READ, is_variable_name
from penstock.model.input import RECORD_TIMESTAMP
from penstock.model.output_mode import (
    EmitChanges,
    EmitFinal,
    KeyedState,
    OutputMode,
    Stateless,
    StreamJoin,
    check_duration,
)
from penstock.model.partition import PartitionBy
from penstock.model.schema import schema
from penstock.model.sql.fold_clause import FoldClause, FoldClauseReader
from penstock.model.sql.lexer import QUOTED
from penstock.model.sql_stream import STREAMS_APP, SqlFold, StreamRead
from penstock.model.topic import OF_TOPIC
from penstock.model.types import quoted
from penstock.settings.app_setting import app_duration

CLAUSES = (
    "STREAM", "READ", "KEY", "VALUE", "EMIT", "JOIN", "STEPS", "PARTITIONS", "RETENTION", "COMPACTED", "PARTITION BY",
    "EVERY", "STATE", "EXPECT", "MASK", "FOLD", "GRACE", "TICK", "SETTING", "WITH", "APP",
)  # fmt: skip
# Where an event time ends.
PARTS_OF_READ = ("EVENT", "AHEAD", "KEEP")
EXCLUDE_EACH_OTHER = (("EMIT", "JOIN"), ("EMIT", "FOLD"), ("JOIN", "FOLD"), ("RETENTION", "COMPACTED"))
REPEATABLE = ("READ", "EXPECT", "FOLD", "SETTING")
OF_WINDOWS = "write FOLD too; EMIT and JOIN have a GRACE of their own: EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS"


@dataclass
class StreamClauses(FoldClauseReader):
    """Reads the clauses of a stream, then its SELECT. `clause_tokens` also has `READ <topic>` and the like."""

    CLAUSES = (*CLAUSES, *PARTS_OF_READ)

    def read(self) -> dict[str, Any]:
        """Every clause up to AS: fields of a SqlStream, and of its topic those in `topic`."""
        values: dict[str, Any] = {"reads": (), "topic": {}, "expectations": ()}
        of_folds: dict[str, timedelta] = {}
        folds: list[FoldClause] = []
        settings: dict[str, timedelta] = {}
        while not self.is_word("AS"):
            name = self._clause()
            match name:
                case "STREAM":
                    self.word("INTO")
                    values["topic"]["name"] = self.name("the topic's name")
                case "READ":
                    values["reads"] += (self._read(),)
                case "KEY" | "VALUE":
                    is_object = self.is_word("(")
                    columns = self._columns(name)
                    values[name.lower()] = columns if is_object else columns[0]
                case "EMIT":
                    values["output_mode"] = self._emit()
                case "JOIN":
                    durations = self._durations(("WITHIN", "GRACE"))
                    with self.placed(name):
                        values["output_mode"] = StreamJoin(**durations)
                case "STEPS":
                    values["steps"] = self.number("the number of stateful steps")
                case "PARTITIONS":
                    values["topic"]["partitions"] = self.number("the number of partitions")
                case "RETENTION":
                    values["topic"]["retention"] = self.duration()
                case "COMPACTED":
                    values["topic"]["compacted"] = True
                case "PARTITION BY":
                    values["partition"] = cast("PartitionBy", self.one_of(get_args(PartitionBy), "the partition"))
                case "EVERY":
                    values["every"] = self.duration()
                case "STATE":
                    self.word("PARTITIONS")
                    values["shuffle_partitions"] = self.number("the number of partitions")
                case "MASK":
                    values["mask"] = self._masks()
                case "EXPECT":
                    values["expectations"] += (self._expectation(),)
                case "FOLD":
                    folds.append(self._fold())
                case "GRACE" | "TICK":
                    of_folds[name.lower()] = self.duration(zero=name == "GRACE")
                case "SETTING":
                    settings.update([self._setting()])
                case "WITH":
                    values["topic"]["config"] = self._topic_config()
                case _:
                    values["app"] = self.name("the app's name")
        if not values["reads"]:
            there = ", ".join(self.clause_tokens) or "none"
            raise self.error("READ is missing", there, "say before AS which topics it reads", self.peek())
        if folds:
            values["folds"] = self._declared_folds(folds, settings, values.get("app", STREAMS_APP))
            self._check_folds(values["folds"], [read.topic for read in values["reads"]])
            self._check_timers(values["folds"], has_table=any(read.is_table for read in values["reads"]))
            self._check_steps(values["folds"], values.get("steps", 1))
            self._check_settings(folds, settings)
            values["output_mode"] = KeyedState(**of_folds)
        elif words := [*of_folds, *(["SETTING"] if settings else [])]:
            name = words[0].upper()
            hint = OF_WINDOWS if name == "GRACE" else "write FOLD too"
            raise self.error(f"{name} is of a stream with FOLD", name, hint, self.clause_tokens[name])
        for clause, of, has in (
            ("STEPS", "EMIT, JOIN or FOLD", "output_mode" in values),
            ("PARTITION BY", "EMIT FINAL", isinstance(values.get("output_mode"), EmitFinal)),
        ):
            if clause in self.clause_tokens and not has:
                hint = f"leave it out, or write {of} too"
                raise self.error(f"{clause} is of a stream with {of}", clause, hint, self.clause_tokens[clause])
        self._check_reads(values["reads"], values.get("output_mode", Stateless()))
        return values

    def _check_reads(self, reads: Sequence[StreamRead], output_mode: OutputMode) -> None:
        """One topic is no table, two are joined, and where records are kept as late, some can be."""
        topics = [read.topic for read in reads if not read.is_table]
        if not topics:
            hint = "read a topic without TABLE too: the records of a table make no batch"
            raise self.error("a stream reads nothing but tables", reads[0].topic, hint, self.clause_tokens["READ"])
        if isinstance(output_mode, StreamJoin) and len(topics) < 2:
            hint = "read another topic; to join with READ TABLE leave JOIN out, as it needs no state"
            raise self.error("JOIN is of a stream that reads two topics", topics[0], hint, self.clause_tokens["JOIN"])
        if not output_mode.drops_late and (kept := [read.topic for read in reads if read.keeps_late]):
            hint = "write GRACE 10 MINUTES, after which a record is late" if isinstance(output_mode, KeyedState) else (
                "leave it out: only a stream with EMIT, JOIN or FOLD has late records")  # fmt: skip
            raise self.error("no record is ever late", "KEEP LATE", hint, self.clause_tokens[f"KEEP LATE {kept[0]}"])

    def _check_timers(self, folds: Sequence[SqlFold], *, has_table: bool) -> None:
        """A TIMER has a TICK; a TICK is of a TIMER, or of a table, which its batches keep near the end of its topic."""
        timed = [one.fold for one in folds if one.fold.timer_field]
        if timed and "TICK" not in self.clause_tokens:
            place = timed[0].query_locations["timer_field"]
            raise DeclarationError(
                f"{place}: a TIMER without TICK does not fire while no records arrive",
                got=f"TIMER {timed[0].timer_field}",
                hint="write TICK 1 SECOND behind the folds, or a longer time",
            )
        if not timed and not has_table and "TICK" in self.clause_tokens:
            hint = "leave it out, or write TIMER field in FOLD"
            raise self.error("TICK is of a fold with TIMER, or of a table", "TICK", hint, self.clause_tokens["TICK"])

    def _check_steps(self, folds: Sequence[SqlFold], steps: int) -> None:
        """STEPS is the number of folds."""
        if steps != len(folds):
            at = self.clause_tokens["STEPS" if "STEPS" in self.clause_tokens else f"FOLD {folds[1].fold.name}"]
            got = f"{len(folds)} folds, " + (f"STEPS {steps}" if "STEPS" in self.clause_tokens else "no STEPS")
            raise self.error("STEPS is not the number of folds", got, f"write STEPS {len(folds)}", at)

    def _check_settings(self, folds: Sequence[FoldClause], settings: Iterable[str]) -> None:
        """Each setting is read by a fold, as a variable or as its INPUT RETENTION."""
        texts = [part for clause in folds for part in clause.parts.values() if isinstance(part, str)]
        read = {name.lower() for text in texts for name in VARIABLE_READ.findall(text)}
        retained = {clause.parts.get("input_retention") for clause in folds}
        for name in settings:
            if name.lower() not in read and name not in retained:
                hint = f"leave it out; a fold reads it as getvariable('{name}'), or as INPUT RETENTION {name}"
                raise self.error("no fold reads this setting", name, hint, self.clause_tokens[f"SETTING {name}"])

    def _declared_folds(
        self, clauses: Sequence[FoldClause], defaults: Mapping[str, timedelta], app: str
    ) -> tuple[SqlFold, ...]:
        settings = {}
        for name, default in defaults.items():
            with self.placed(f"SETTING {name}"):
                settings[name] = app_duration(app, name, default)
                check_duration(f"setting {name}", settings[name])
        return tuple(self._declared_fold(clause, settings) for clause in clauses)

    def _setting(self) -> tuple[str, timedelta]:
        """A setting's name, and its default."""
        first = self.peek()
        name = self.name("the setting's name")
        if not is_variable_name(name):
            raise self.error("this is no name of a setting", name, VARIABLE_NAMES, first)
        clause = f"SETTING {name}"
        if clause.lower() in {one.lower() for one in self.clause_tokens}:
            raise self.error("a setting is declared twice", name, "leave one", first)
        self.clause_tokens[clause] = first
        return name, self.duration(zero=True)

    def _topic_config(self) -> dict[str, str]:
        """Names and values of the broker, in quotations."""
        config: dict[str, str] = {}
        self.word("(")
        while True:
            first = self.peek()
            name = self._quoted("the name of a topic's setting")
            self.word("=")
            if name in config:
                raise self.error("a setting of the topic is given twice", name, "leave one", first)
            config[name] = self._quoted("its value")
            if not self.is_word(","):
                self.word(")")
                return config
            self.next(",")

    def _quoted(self, what: str) -> str:
        token = self.next(what)
        if token.token_type != TokenType.STRING:
            hint = "write it in single quotation marks: WITH ('min.compaction.lag.ms' = '60000')"
            raise self.error(f"expected {what}", token.text, hint, token)
        return token.text

    def _check_folds(self, folds: Sequence[SqlFold], topics: Sequence[str]) -> None:
        """Folds have names of their own, and read topics, or earlier folds by a SELECT that gives an event time."""
        known = list(topics)
        for one in folds:
            token = self.clause_tokens[f"FOLD {one.fold.name}"]
            if one.fold.name in {name.lower() for name in known}:
                raise self.error("a fold has the name of a topic", one.fold.name, "give it another name", token)
            if not one.is_select and one.source not in topics:
                if one.source in known:
                    raise self.error(
                        f"FOLD {one.fold.name} reads the rows of a fold, which have no event time", one.source,
                        "select it of a field: FROM (SELECT *, timestamp_millis(at) AS event_time"
                        f" FROM {quoted(one.source)})", token,
                    )  # fmt: skip
                raise self.error(
                    f"FOLD {one.fold.name} reads what is neither a topic of READ nor an earlier fold",
                    one.source, f"take one of: {', '.join(topics)}; or write FROM (SELECT ...)", token,
                )  # fmt: skip
            known.append(one.fold.name)

    def _clause(self) -> str:
        token = self.next("a clause, or AS and the SELECT")
        name = " ".join(token.text.upper().split())
        if name not in CLAUSES or token.token_type in QUOTED:
            known = ", ".join((*CLAUSES, "AS"))
            raise self.error("this is no clause of a stream", token.text, f"take one of: {known}", token)
        if not self.clause_tokens and name != "STREAM":
            raise self.error("a stream begins with STREAM INTO", token.text, "say first into which topic", token)
        key = "INTO" if name == "STREAM" else name
        if key in self.clause_tokens and name not in REPEATABLE:
            raise self.error("a clause is repeated", name, "leave one", token)
        for pair in EXCLUDE_EACH_OTHER:
            if name in pair and (other := next((one for one in pair if one != name and one in self.clause_tokens), "")):
                raise self.error(f"{other} and {name} exclude each other", name, "leave one", token)
        self.clause_tokens.setdefault(key, token)
        return name

    def _read(self) -> StreamRead:
        first = self.peek()
        is_table = self.is_word("TABLE") and not self._names_a_topic()
        if is_table:
            self.next("TABLE")
        topic = self.name("the topic's name")
        if f"read {topic}".lower() in {one.lower() for one in self.clause_tokens}:
            raise self.error("a topic is read twice", topic, "read it once, and name it in FROM as often", first)
        self.clause_tokens[f"READ {topic}"] = first
        ddl, names = OF_TOPIC, {RECORD_TIMESTAMP}
        if self.is_word("AS") and not self.begins_select():
            self.next("AS")
            self.word("JSON")
            ddl = self._inside("the fields, as (id BIGINT NOT NULL, name STRING)")
            with self.placed(f"READ {topic}"):
                names = {one.name.lower() for one in schema(ddl, f"topic {topic}")}
        read: dict[str, Any] = {}
        while True:
            part = self.peek()
            if self.is_word("EVENT"):
                self.at += 1
                self.word("TIME")
                self._once(read, "event_time", self._expression("the event time"), part)
            elif self.is_word("AHEAD"):
                self.at += 1
                self._once(read, "ahead", self.duration(), part)
            elif self.is_word("KEEP"):
                self.at += 1
                self.word("LATE")
                self._once(read, "keeps_late", True, part)
                self.clause_tokens[f"KEEP LATE {topic}"] = part
            elif self.is_word("WITH") and not self._begins_topic_config():
                self.at += 1
                self.word("RECORD")
                self._once(read, "has_record", True, part)
            else:
                break
            if is_table:
                hint = "leave it out: a table has the newest value of each key, whenever it was written"
                lacks = "record" if "has_record" in read else "event time"
                raise self.error(f"a table has no {lacks}", part.text, hint, part)
        if not (is_table or "event_time" in read or RECORD_TIMESTAMP in names):
            hint = "write EVENT TIME timestamp_millis(field), or another expression over the fields"
            raise self.error("no field is the event time", ddl, hint, first)
        return StreamRead(topic, ddl, is_table=is_table, **read)

    def _names_a_topic(self) -> bool:
        """Whether this word is followed by AS, and so is the name of a topic."""
        following = self.tokens[self.at + 1 : self.at + 2]
        return bool(following) and following[0].text.upper() == "AS" and following[0].token_type not in QUOTED

    def _begins_topic_config(self) -> bool:
        """Whether this WITH is a clause, and no part of READ."""
        return [one.text for one in self.tokens[self.at + 1 : self.at + 2]] == ["("]

    def _once(self, read: dict[str, Any], name: str, value: object, token: Token) -> None:
        if name in read:
            raise self.error("a part of READ is repeated", token.text, "leave one", token)
        read[name] = value

    def _expectation(self) -> Expectation:
        """A rule: its name, its predicate up to ON VIOLATION, and what is done."""
        first = self.peek()
        name = self.name("the rule's name")
        clause = f"EXPECT {name}"
        if clause.lower() in {one.lower() for one in self.clause_tokens}:
            raise self.error("a rule is declared twice", name, "rename one: names do not differ in case alone", first)
        self.clause_tokens[clause] = first
        start = self.at
        words = ["" if one.token_type in QUOTED else one.text.upper() for one in self.tokens]
        end = next((at for at in range(start, len(words)) if words[at : at + 2] == ["ON", "VIOLATION"]), start)
        if end == start:
            hint = "write EXPECT name, the predicate, then ON VIOLATION KEEP, DEAD LETTER or FAIL"
            raise self.error("the predicate of the rule or ON VIOLATION is missing", name, hint, first)
        predicate = self.text[self.tokens[start].start : self.tokens[end - 1].end + 1]
        self.at = end + 2
        what = "KEEP, DEAD LETTER or FAIL"
        token = self.next(what)
        action = token.text.lower()
        if action == "dead":
            self.word("LETTER")
            action = "dead letter"
        elif action not in get_args(OnViolation):
            raise self.error("this cannot be done with a row that violates a rule", token.text, f"write {what}", token)
        with self.placed(clause):
            expectation = Expectation(name, predicate, cast("OnViolation", action))
        object.__setattr__(expectation, "location", self.place(first))
        return expectation

    def _emit(self) -> EmitFinal | EmitChanges:
        is_final = self.one_of(("final", "changes"), "what is emitted") == "final"
        durations = self._durations(("WINDOW", "GRACE"), ("PHASE", "LATE") if is_final else ("PHASE",))
        if "late" in durations:
            durations["first_step"] = durations.pop("late")
        with self.placed("EMIT"):
            return EmitFinal(**durations) if is_final else EmitChanges(**durations)

    def _durations(self, required: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, timedelta]:
        """Words that are each followed by a duration, in any order; 0 is one too but for a WINDOW."""
        durations: dict[str, timedelta] = {}
        first = self.tokens[self.at - 1]
        while word := next((one for one in (*required, *others) if self.is_word(one)), ""):
            token = self.next(word)
            if word.lower() in durations:
                raise self.error(f"{word} is repeated", token.text, "leave one", token)
            if word == "LATE":
                self.word("BY")
            durations[word.lower()] = self.duration(zero=word != "WINDOW")
        if missing := [word for word in required if word.lower() not in durations]:
            hint = f"write {' '.join(f'{word} 1 MINUTE' for word in required)}, with the times that you mean"
            raise self.error(f"{missing[0]} is missing", ", ".join(durations).upper() or "nothing", hint, first)
        return durations
