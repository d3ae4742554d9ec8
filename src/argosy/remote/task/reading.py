"""Which of a session's methods reads which record, and how long each record is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from argosy.remote.operations import instructions as codes
from argosy.remote.task.probing import probe

if TYPE_CHECKING:
    from argosy.remote.task.client_session import Session

Reader = Callable[..., None]

_METHODS = {
    codes.DEFINE: "define",
    codes.PUT: "put",
    codes.SEND: "send",
    codes.EXPECT: "expect",
    codes.FETCH: "fetch",
    codes.SEED: "seed",
    codes.DROP: "drop",
    codes.FORGET: "forget",
    codes.REPORT: "report",
    codes.WAIT: "wait",
    codes.RECORD: "record",
    codes.REPLAY: "replay",
    codes.UNRECORD: "unrecord",
    codes.ALIAS: "alias",
    codes.SEEN: "seen",
}


def readers(session: Session) -> dict[int, tuple[int, Reader]]:
    """For each record its length and what carries it out."""
    found: dict[int, tuple[int, Reader]] = {
        code: (codes.WIDTHS[code], getattr(session, name)) for code, name in _METHODS.items()
    }

    def probe_here(*record: Any) -> None:
        probe(session, *record)

    return found | {codes.PROBE: (codes.WIDTHS[codes.PROBE], probe_here)}
