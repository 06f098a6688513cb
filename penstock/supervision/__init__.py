"""Keeps one driver per wanted app, by short ticks that may be repeated, interrupted and run twice at once.

`AppWatch.look` only reads, `Supervisor.tick` acts; both decide by `decide`. Of two supervisors the control database
lets one launch (`Control.claim`). A driver of which nothing is known, because the database is away or it runs on
another host, is never taken for dead. The package also has the lifecycle of every driver and the heartbeats. It needs
neither Spark nor Airflow.
"""
