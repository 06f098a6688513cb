"""What was declared before, and a backfill of its own."""

from penstock.streams import Backfill

from .kept import ORDER_ARCHIVE
from .orders import STREAMS as OTHERS

FIRST_YEAR = Backfill("first-year", "the old shop's files", OTHERS[0], "Sums of the year before there was a stream.")
SECOND_NAME = ORDER_ARCHIVE
