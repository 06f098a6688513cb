"""The pytest plugin that runs the cases of streams in `tests/streams/*.yaml`; docs/stream-tests.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import DeclarationError, PenstockError
from penstock.testing.case_file import read_cases
from penstock.testing.case_run import CaseFailure, NotPossible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.devstack.servers.kafka import Broker
    from penstock.testing.case_file import DocumentCase, RefusedStatement, StreamCase, Way

# JVMs of tests live for minutes: what the second compiler makes of their code they would not live to use.
QUICK = ("-XX:TieredStopAtLevel=1",)
WAYS = ("recompute", "rebuild")


def pytest_configure(config: pytest.Config) -> None:
    for way in WAYS:
        config.addinivalue_line("markers", f"{way}: a case of tests/streams that is run as a {way}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> StreamCases | None:
    if file_path.suffix == ".yaml" and file_path.parts[-3:-1] == ("tests", "streams"):
        collector: StreamCases = StreamCases.from_parent(parent, path=file_path)
        return collector
    return None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests. A fixture of this name in a conftest.py takes its place."""
    from penstock.java import aot_cache
    from penstock.testing.run import spark_session

    with spark_session([*aot_cache.options(), *QUICK]) as session:
        yield session


@pytest.fixture(scope="session")
def started_case_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One Kafka broker for all cases, which delete its topics; it may not serve yet, and does while Spark starts."""
    from penstock.devstack.servers.kafka import Broker
    from penstock.host.ports import free_port

    class QuickBroker(Broker):
        java_options = (*Broker.java_options, *QUICK)

    server = QuickBroker(home=tmp_path_factory.mktemp("broker"), port=free_port(2))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def case_broker(started_case_broker: Broker) -> Broker:
    """The broker of the cases."""
    started_case_broker.wait()
    return started_case_broker


class StreamCases(pytest.File):
    """A file of cases."""

    def collect(self) -> Iterator[CaseItem]:
        try:
            file = read_cases(self.path)
        except DeclarationError as e:
            raise self.CollectError(str(e)) from e
        for name, case in file.cases.items():
            for way in case.ways:
                title = name if len(case.ways) == 1 else f"{name}[{way}]"
                item = self._item(title, _run_case(case, way, self._project))
                item.step_count = len(case.steps)
                for marker in case.markers:
                    item.add_marker(marker)
                if way in WAYS:
                    item.add_marker(way)
                yield item
        for name, documents in file.documents.items():
            yield self._item(name, _run_documents(documents, f"{self.path.name}: {name}", self._project))
        for name, refusal in file.refused.items():
            yield self._item(name, _run_refusal(refusal, f"{self.path.name}: {name}", self._project))

    @property
    def _project(self) -> Path:
        """The folder that has `tests/streams`."""
        return self.path.parents[2]

    def _item(self, name: str, run: Callable[..., None]) -> CaseItem:
        item: CaseItem = CaseItem.from_parent(self, name=name, callobj=run)
        return item


class CaseItem(pytest.Function):
    """A case that is run in one way, or a statement that must be refused; a function, so that it may have fixtures.

    Attributes:
        step_count: The steps of a case of streams; 0 for others.
    """

    step_count = 0

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        if isinstance(excinfo.value, CaseFailure | PenstockError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def _run_case(case: StreamCase, way: Way, project: Path) -> Callable[..., None]:
    # Pytest makes the fixtures in this order.
    @pytest.mark.usefixtures("started_case_broker")
    def run(spark: SparkSession, case_broker: Broker, tmp_path: Path) -> None:
        from penstock.testing.case_ways import run_case

        try:
            run_case(case, way, project, spark, case_broker.bootstrap, tmp_path)
        except NotPossible as e:
            pytest.skip(str(e))
        except CaseFailure as e:
            # Frames of a failed test live on, and with them clients of a broker that is gone by then.
            raise e.with_traceback(None) from None

    return run


def _run_documents(case: DocumentCase, label: str, project: Path) -> Callable[..., None]:
    def run(spark: SparkSession) -> None:
        from penstock.testing.documents import check_documents

        check_documents(case, label, project, spark)

    return run


def _run_refusal(refusal: RefusedStatement, label: str, project: Path) -> Callable[..., None]:
    def run(spark: SparkSession) -> None:
        from penstock.testing.case_ways import check_refusal

        check_refusal(refusal, label, project, spark)

    return run
