"""pyiceberg's client of a REST catalog, with what it lacks: time limits, and doubt in the refusal of a commit.

Tried with pyiceberg 0.12.0.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.update import AddSnapshotUpdate
from requests import PreparedRequest, Response, Session

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

REQUEST_TIMEOUT = 20.0
"""Seconds for a connection, and for each part of an answer."""


class TimedRestCatalog(RestCatalog):
    """A REST catalog. A server that accepts and does not answer is one that is away."""

    def _create_session(self) -> Session:
        session = _timed(super()._create_session())
        if isinstance(self._auth_manager, OAuth2AuthManager):
            given = self._auth_manager.token_provider
            self._auth_manager.token_provider = TimedTokenProvider(
                given.client_id, given.client_secret, given.token_url, given.scope, given.refresh_margin,
                given.expires_in,
            )  # fmt: skip
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        # It asks for a token at once, before the session is complete.
        return super()._create_legacy_oauth2_auth_manager(_timed(session))

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates to a table; see `RestCatalog.commit_table`.

        Raises:
            CommitStateUnknownException: Also if the server refuses the commit because it has executed it, as a proxy
                between has sent it twice. The library would delete the metadata of that snapshot.
        """
        try:
            done: CommitTableResponse = super().commit_table(table, requirements, updates)
        except CommitFailedException as e:
            added = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
            if added and any(map(self.load_table(table.name()).metadata.snapshot_by_id, added)):
                raise CommitStateUnknownException(f"it was executed, and then refused: {e}") from e
            raise
        return done


class TimedTokenProvider(OAuth2TokenProvider):
    """A client of a server of tokens, whose requests have a time limit."""

    def _refresh_token(self) -> None:
        data = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        with _timed(Session()) as session:
            answer = session.post(self.token_url, data, headers={"Authorization": self._client_secret_header})
        answer.raise_for_status()
        found = answer.json()
        lives = found.get("expires_in", self.expires_in)
        # Of a token that does not say how long it lives each request asks for a new one.
        self._token = found["access_token"]
        self._expires_at = int(time.monotonic() + (lives or 0) - self.refresh_margin)


def _timed(session: Session) -> Session:
    """Give each request of a session a time limit, by whatever adapter it is sent."""
    if not isinstance(session.send, partial):
        session.send = partial(_send, session.send)  # type: ignore[method-assign]
    return session


def _send(send: Any, request: PreparedRequest, **options: Any) -> Response:
    answer: Response = send(request, **{**options, "timeout": options.get("timeout") or REQUEST_TIMEOUT})
    return answer
