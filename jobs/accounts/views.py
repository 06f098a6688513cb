"""Accounts and tests, to be asked for by REST."""

from __future__ import annotations

from penstock.streams import View

# `active` and `enabled` are 0 or 1.
ACCOUNTS = View(
    "known-accounts",
    "accounts",
    schema="id BIGINT NOT NULL, name STRING, plan STRING, active INT, updated_at STRING",
    query_by=("plan", "active"),
)
TESTS = View(
    "known-tests",
    "tests",
    schema="id BIGINT NOT NULL, account_id BIGINT, name STRING, kind STRING, target STRING, every_seconds BIGINT, "
    "enabled INT, updated_at STRING",
    query_by=("account_id", "kind", "enabled"),
)
