"""State of sessions, users and applications, as records of Parley."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.adk.sessions import Session, State
from pydantic_core import to_jsonable_python

from parley.adapters._common import conversation_id
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from google.adk.events import Event

STATE_KEY = "adk/state"
SESSION_PREFIX = "adk/session/"
BOTH_PREFIX = "adk/s"  # The session's record comes first.
MAX_LABEL_BYTES = 1024


@dataclass
class Header:
    """The record of a session that every append writes, and whose revision guards it.

    The nonce is part of the record's key. It distinguishes the session from an earlier one with the
    same id, whose record may have had the same revision.
    """

    nonce: str
    revision: int
    app: str
    user: str
    id: str
    updated: float
    events: int

    @property
    def marker(self) -> str:
        """What a session object keeps: the session and the revision that it is based on."""
        return f"{self.nonce}:{self.revision}:{self.events}"

    def write(self) -> RecordWrite:
        """Return the write of the record over the revision of the header."""
        value = {
            "app": self.app,
            "user": self.user,
            "id": self.id,
            "updated": self.updated,
            "events": self.events,
        }
        return RecordWrite(
            key=SESSION_PREFIX + self.nonce,
            value=to_json(value),
            media_type="application/json",
            if_revision=self.revision,
        )

    def belongs_to(self, app: str, user: str | None) -> bool:
        """Report whether the session is of an application, and of a user unless that is None."""
        return self.app == app and user in (None, self.user)

    def session(
        self,
        state: dict[str, Any],
        app: SharedState,
        user: SharedState,
        *,
        events: list[Event] | None = None,
    ) -> Session:
        """Return the session with the merged state."""
        merged = dict(state)
        merged.update({State.APP_PREFIX + key: value for key, value in app.values.items()})
        merged.update({State.USER_PREFIX + key: value for key, value in user.values.items()})
        session = Session(
            id=self.id,
            app_name=self.app,
            user_id=self.user,
            state=merged,
            events=events or [],
            last_update_time=self.updated,
        )
        session._storage_update_marker = self.marker
        return session


@dataclass
class Stored:
    """The records of a session."""

    header: Header
    state: dict[str, Any]


@dataclass
class SharedState:
    """The state of a user or an application, which is a record of the tenant."""

    key: str
    values: dict[str, Any] = field(default_factory=dict)
    revision: int = 0

    def merge(self, change: dict[str, Any]) -> list[RecordWrite]:
        """Change the values, and return the write of the record; no write for no change."""
        if not change:
            return []
        self.values.update(change)
        return [
            RecordWrite(
                key=self.key,
                value=to_json(self.values),
                media_type="application/json",
                if_revision=self.revision,
                tenant_scope=True,
            )
        ]


@dataclass
class Change:
    """New values of the three scopes, as JSON values and with keys without the prefix."""

    app: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)


def app_key(app: str) -> str:
    """Return the key of the state of an application."""
    return conversation_id("adk", "app", app)


def user_key(app: str, user: str) -> str:
    """Return the key of the state of a user."""
    return conversation_id("adk", "user", app, user)


def label(id_: str) -> str:
    """Return the value of a label for an id; a digest if the id is too long for a label."""
    encoded = id_.encode()
    return id_ if len(encoded) <= MAX_LABEL_BYTES else "~" + hashlib.sha256(encoded).hexdigest()


def to_json(value: object) -> bytes:
    """Return JSON in ASCII. It also represents NaN and lone surrogates, as ADK's own services."""
    return json.dumps(value, separators=(",", ":")).encode()


def by_scope(state: dict[str, Any]) -> Change:
    """Return a state as JSON values by scope, without ``temp:``.

    Values that have no JSON form become their repr, as in ADK's own services.
    """
    change = Change()
    for key, value in state.items():
        if key.startswith(State.TEMP_PREFIX):
            continue
        safe = to_jsonable_python(value, serialize_unknown=True)
        if key.startswith(State.APP_PREFIX):
            change.app[key.removeprefix(State.APP_PREFIX)] = safe
        elif key.startswith(State.USER_PREFIX):
            change.user[key.removeprefix(State.USER_PREFIX)] = safe
        else:
            change.session[key] = safe
    return change
