"""Timetables of backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.timetables.interval import CronDataIntervalTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
    from pendulum import FixedTimezone, Timezone


class EachInterval(CronDataIntervalTimetable):
    """The data intervals of a cron line, from the latest one at the first run on, without a gap: one that ended while
    Airflow was down, the DAG was paused or an earlier run went on has its run later. For a DAG with `catchup=False`."""

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if last_automated_data_interval is not None:
            restriction = restriction._replace(catchup=True)
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )


class OnDemandIntervals(CronDataIntervalTimetable):
    """The data intervals of a cron line, for runs that are triggered and for Airflow's own backfills; the scheduler
    starts none by itself. For a DAG with `catchup=False`."""

    def __init__(self, cron: str, timezone: str | Timezone | FixedTimezone) -> None:
        super().__init__(cron, timezone)
        self.description = f"Only when a run is triggered; its interval is that of the cron line {cron}"

    @property
    def summary(self) -> str:
        """What Airflow's list of DAGs shows as schedule."""
        return "when triggered"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        # The scheduler passes the DAG's catchup, which is off; a backfill passes True for all intervals of its range.
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
