"""The operator that keeps the tables of archives small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from penstock.airflow.connections import resolve_in_airflow

if TYPE_CHECKING:
    from airflow.sdk import Context


class MaintainArchive(BaseOperator):
    """Expires old snapshots of an archive's tables, and deletes objects that no snapshot needs.

    Args:
        archive: A declared archive.
    """

    template_fields = ("archive",)
    ui_color = "#e2e0d5"

    def __init__(self, *, archive: str, **more: Any) -> None:
        super().__init__(**more)
        self.archive = archive

    def execute(self, context: Context) -> list[dict[str, Any]]:  # noqa: ARG002
        from penstock.archive.stream import output_of
        from penstock.catalog import load_partial
        from penstock.errors import DeclarationError, Wait, optional_packages

        with optional_packages():
            from penstock.archive.maintenance import maintain

        resolve_in_airflow()
        declared, wrong = load_partial(combiners=False)
        if (archive := declared.archives.get(self.archive)) is None:
            raise DeclarationError(
                f"archive {self.archive} is not maintained: no valid file declares it",
                got="; ".join(map(str, wrong)) or None,
                hint="`penstock archives list` shows those that are declared",
            )
        try:
            done = maintain(output_of(archive))
        except Wait as e:
            raise AirflowSkipException(f"not now: {e}") from e
        for one in done:
            self.log.info(
                "table %s: %d snapshots expired, %d objects of %d bytes deleted",
                one.table, one.snapshots, one.objects, one.bytes,
            )  # fmt: skip
        return [vars(one) for one in done]
