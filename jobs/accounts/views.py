"""Views of accounts and tests."""

from __future__ import annotations

from jobs import captures
from penstock.streams import View

ACCOUNTS = View("known-accounts", captures.ACCOUNTS, schema=captures.ACCOUNT, query_by=("plan", "active"))
TESTS = View("known-tests", captures.TESTS, schema=captures.TEST, query_by=("account_id", "kind", "enabled"))
