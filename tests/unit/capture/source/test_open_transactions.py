"""Since when transactions are open, as looks at a server's sessions tell it one after the other."""

from __future__ import annotations

from penstock.capture.source.open_transactions import ServerSession, TransactionSnapshot, TransactionTracker


def statement(connection: str, began: float) -> ServerSession:
    return ServerSession(began, connection)


def transaction(connection: str, shown: float, number: str = "") -> ServerSession:
    return ServerSession(shown, connection, shown, number)


def prepared(shown: float, number: str) -> ServerSession:
    return ServerSession(shown, "", shown, number)


def test_nobody() -> None:
    assert TransactionTracker().taken(10.0, []) == TransactionSnapshot(10.0, None)


def test_a_statement_that_waited_before_it_touched_a_row() -> None:
    look = TransactionTracker()
    assert look.taken(10.0, [statement("5", 8.0)]).oldest == 8.0
    assert look.taken(20.0, [transaction("5", 15.0)]).oldest == 8.0
    assert look.taken(30.0, [transaction("5", 15.0, "77")]).oldest == 8.0
    assert look.taken(40.0, [transaction("5", 31.0)]).oldest == 31.0


def test_a_session_that_goes_on_is_not_as_old_as_what_it_did_first() -> None:
    look = TransactionTracker()
    look.taken(10.0, [statement("5", 8.0), transaction("6", 7.0), transaction("7", 6.0, "1")])
    found = look.taken(20.0, [statement("5", 18.0), transaction("6", 17.0), transaction("7", 16.0, "2")])
    assert found.oldest == 16.0


def test_prepared_transactions_are_kept_apart_by_their_numbers() -> None:
    look = TransactionTracker()
    look.taken(10.0, [transaction("5", 8.0, "1"), transaction("6", 9.0, "2")])
    assert look.taken(20.0, [prepared(8.0, "1"), prepared(9.0, "2")]).oldest == 8.0
    assert look.taken(30.0, [prepared(9.0, "2")]).oldest == 9.0


def test_a_restart_of_the_server_makes_no_transaction_younger() -> None:
    look = TransactionTracker()
    look.taken(10.0, [transaction("5", 8.0, "1")])
    assert look.taken(100.0, [prepared(99.0, "1")]).oldest == 8.0


def test_what_was_prepared_unseen_is_as_old_as_the_oldest_that_may_have_become_it() -> None:
    look = TransactionTracker()
    look.taken(10.0, [transaction("4", 1.0), transaction("5", 6.0), statement("6", 8.0), transaction("7", 2.0, "1")])
    found = look.taken(20.0, [transaction("4", 1.0), prepared(19.0, "9")])
    assert look.starts["9"] == 6.0
    assert found.oldest == 1.0
    look.taken(30.0, [prepared(19.0, "9"), prepared(29.0, "10")])
    assert look.starts == {"9": 6.0, "10": 1.0}
