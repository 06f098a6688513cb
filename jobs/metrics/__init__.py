"""Streaming summaries: receipts `{environment, metric, value, timestamp}` become figures per window."""

from datetime import timedelta

from penstock.streams import Input, Topic

RECEIPTS = Topic("receipts", partitions=4, retention=timedelta(days=2))

# timestamp: epoch ms by the clock of whoever measured.
RECEIPT = "environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL"

RECEIPT_INPUT = Input(RECEIPTS, schema=RECEIPT, event_time="timestamp_millis(timestamp)")
