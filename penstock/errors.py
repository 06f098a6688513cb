"""The errors a caller can act on. Each says what is wrong, what was got and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class PenstockError(Exception):
    """Base of every error Penstock raises on purpose.

    Args:
        what: The fault in one clause.
        got: The offending value, as found.
        hint: What to do next.
    """

    def __init__(self, what: str, *, got: object = None, hint: str = "") -> None:
        self.what, self.got, self.hint = what, got, hint
        parts = [what]
        if got is not None:
            parts.append(f"got: {got}")
        if hint:
            parts.append(f"hint: {hint}")
        # A name of a file that is not UTF-8, and any other half of a surrogate pair, goes into no JSON and no database.
        super().__init__("; ".join(parts).encode(errors="backslashreplace").decode())

    def restate(self, what: str, hint: str = "") -> None:
        """Replace the description of the fault, e.g. by one that says where it was found."""
        PenstockError.__init__(self, what, got=self.got, hint=hint or self.hint)


def line_within(folder: Path, error: BaseException) -> str:
    """The innermost line of a folder's code that an error has passed, as `FILE:LINE`; empty if there is none."""
    lines = (f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    return next((line for line in lines if line.startswith(f"{folder}/")), "")


class DeclarationError(PenstockError):
    """A declared topic, stream or rule is wrong; found when the catalog is loaded.

    argument: the argument of a stream or fold that is wrong, where a declaration in SQL has a place of it.
    """

    def __init__(self, what: str, *, got: object = None, hint: str = "", argument: str = "") -> None:
        super().__init__(what, got=got, hint=hint)
        self.argument = argument


class SettingError(PenstockError):
    """A setting has no valid value."""


class BrokerError(PenstockError):
    """Kafka refused or did not answer."""


class RecordTooLarge(BrokerError):
    """A record is larger than its topic takes, and nothing of its batch is written."""


class BrokerRefused(BrokerError):
    """Kafka answered and refused; `code` is the code of its error (`confluent_kafka.KafkaError`)."""

    def __init__(self, what: str, *, code: int, got: object = None, hint: str = "") -> None:
        super().__init__(what, got=got, hint=hint)
        self.code = code


class ControlError(PenstockError):
    """The control database refused or did not answer."""


class LeaseHeld(PenstockError):
    """Another live driver, `holder`, holds the lease; this one must not start the stream."""

    def __init__(self, what: str, *, holder: str, got: object = None, hint: str = "") -> None:
        super().__init__(what, got=got, hint=hint)
        self.holder = holder


class LeaseLost(PenstockError):
    """This driver no longer owns the stream and must stop writing."""


class Blocked(PenstockError):
    """To go on would lose or falsify something: the stream stops by itself until the cause is gone or accepted.

    hint: the one command that goes on.
    """


class DataLossChanged(PenstockError):
    """A stream is blocked by gaps that were not shown to who lets it go on; none is accepted."""


class ClusterError(PenstockError):
    """The master of a Spark cluster refused or did not answer."""


class ReleaseRefused(PenstockError):
    """The code on the disk would not run, or could not continue with the present state; nothing was released."""


class ReplacementRefused(ReleaseRefused):
    """A replacement cannot be started, or not be changed so; nothing was done."""


class SinkError(PenstockError):
    """A store outside Kafka refused or did not answer."""


class RegistryError(PenstockError):
    """The schema registry refused or did not answer; the same again later."""


class UnknownSchema(PenstockError):
    """The schema registry has no schema of an id."""


class SchemaNotRegistered(PenstockError):
    """A schema that is to be written is not registered; a release registers it."""


class IncompatibleSchema(PenstockError):
    """The schema registry refuses a schema because of the versions that it has; `got` is what it says."""


class CommandError(PenstockError):
    """A command that the operator page runs has failed, or has not ended."""


class BackfillError(PenstockError):
    """A backfill was refused, or what it wrote is not what it read."""


class InputNotReady(BackfillError):
    """What a backfill is to read is not all there; the same again later."""


class HostError(PenstockError):
    """Something of this machine is missing or fails: a program, a port, a server of the devstack."""


class MissingExtra(PenstockError):
    """A package that only some projects need is not installed."""


# By the package that is imported: the extra of pyproject.toml that has it.
EXTRAS = {
    "authlib": "registry", "fastavro": "registry", "grpc_tools": "registry", "ptars": "registry",
    "bson": "mongodb", "pymongo": "mongodb", "elastic_transport": "elasticsearch", "elasticsearch": "elasticsearch",
    "openlineage": "lineage", "psycopg": "postgres", "pyiceberg": "s3", "pyiceberg_core": "s3",
    "watchfiles": "devstack",
}  # fmt: skip


@contextmanager
def optional_packages() -> Iterator[None]:
    """Name the extra to install where an import within fails for lack of a package of it.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if extra := EXTRAS.get((e.name or "").partition(".")[0]):
            hint = f"pip install 'penstock[{extra}]'"
            raise MissingExtra(f"the Python package {e.name} is not installed", hint=hint) from e
        raise


class Wait(PenstockError):
    """A store takes nothing for the moment; the caller tries the same again after `seconds`."""

    def __init__(
        self, what: str, *, seconds: float, got: object = None, hint: str = "nothing: it is tried again"
    ) -> None:
        super().__init__(what, got=got, hint=hint)
        self.seconds = seconds


class Refused(PenstockError):
    """A store can never take some rows of a batch.

    Args:
        rows: Why, by output and row number.
        written: How many rows it has taken, which are all others; None if the rest must be written again.
    """

    def __init__(
        self, what: str, *, rows: Mapping[str, Mapping[int, str]], got: object = None, written: int | None = None
    ) -> None:
        super().__init__(
            what, got=got, hint="nothing to do: these rows become dead letters, and the other rows are written again"
        )
        self.rows, self.written = rows, written
