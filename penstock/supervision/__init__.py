"""Keeps one driver per wanted app, by short ticks that may be repeated, interrupted and run twice at once.

`AppWatch.look` only reads, `Supervisor.tick` acts; both reach their decision through `decide`. Of two supervisors the
control database lets one launch (`Control.claim`). What is unknown, because the database is away or the driver is on
another host, is never taken for dead. Beside them stand the life of every driver and the heartbeats. Neither Spark nor
Airflow.
"""
