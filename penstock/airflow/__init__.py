"""Airflow's side of Penstock: DAGs, operators, triggers, timetables and the operator page.

Only this package imports Airflow.
"""
