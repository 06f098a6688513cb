"""The topic that marks which batch of which stream is written; see penstock.kafka.output."""

from penstock.streams.declare import Topic

# A stream's mark must stay in its partition: never change the number.
COMMITS = Topic("penstock.commits", partitions=16, compacted=True, beat_every=0)
