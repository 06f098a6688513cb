"""Checks the masks of a stream on the rows of its transform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from penstock.errors import DeclarationError
from penstock.model.mask import mask_text
from penstock.model.mask_expressions import masked_columns
from penstock.model.output import TopicOutput
from penstock.model.sql.spark_select import error_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.model.stream import Stream


def check_masks(stream: Stream, rows: DataFrame) -> None:
    """Check the masks of a stream on the rows that its transform returned, before any batch.

    Raises:
        DeclarationError: A mask names an unknown column, or one that cannot be masked.
        SettingError: A key does not exist, or is not valid.
    """
    for output in stream.outputs.values():
        if output.mask and isinstance(output, TopicOutput):
            try:
                rows.select(*output.columns(masked_columns(rows, output.mask)))
            except PySparkException as e:
                raise DeclarationError(
                    f"{output.mask[0].location}: Spark does not take the masks of stream {stream.name}",
                    got=f"{mask_text(output.mask)}: {error_text(e)}",
                    hint="mask columns of other types, or give the value a column of its own in the SELECT",
                ) from e
