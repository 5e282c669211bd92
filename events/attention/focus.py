"""What attention is turned to in each space, as it follows from FOCUS_SHIFT_REQUEST and ATTENTION_REQUEST.

A fold over events that may be given twice and in any order: of the shifts the latest holds, of the requests all that
still last. So a restart reads them again from the log, and then goes on live.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from events.attention_gate import Focus
from events.cognitive_events import AttentionRequest, FocusShiftRequest
from events.errors import InvalidMessage
from events.types import Event, EventType
from filters.serial import filter_from
from policies.attention import FocusTable

logger = logging.getLogger("events.attention")
HEARD: Final = (EventType.FOCUS_SHIFT_REQUEST, EventType.ATTENTION_REQUEST)
_NOTHING: Final[tuple[Focus, ...]] = ()


class _Space:
    """One space: the shift that holds, the requests that last, and both as decisions see them."""

    __slots__ = ("changes_ms", "focus", "requests", "shift", "shifted")

    def __init__(self) -> None:
        self.shift: Focus | None = None
        self.shifted: tuple[int, str] = (-1, "")
        self.requests: dict[str, Focus] = {}
        self.focus: tuple[Focus, ...] = _NOTHING
        self.changes_ms = 0

    def settle(self, now_ms: int) -> None:
        """Let go of what has ended, and note when the next of the rest does."""
        if self.shift is not None and self.shift.until_ms <= now_ms:
            self.shift = None
        self.requests = {key: one for key, one in self.requests.items() if one.until_ms > now_ms}
        lasting = [*([self.shift] if self.shift is not None else []), *self.requests.values()]
        if tuple(lasting) != self.focus:
            self.focus = tuple(lasting)
        self.changes_ms = min((one.until_ms for one in lasting), default=0)


class FocusBoard:
    """The focus of every space. Looking is cheap: nothing is computed until something changes or ends."""

    def __init__(self, table: FocusTable) -> None:
        self.table = table
        self._spaces: dict[str, _Space] = {}

    def of(self, space_id: str, now_ms: int) -> tuple[Focus, ...]:
        """What attention is turned to now; the same object for as long as it does not change."""
        space = self._spaces.get(space_id)
        if space is None:
            return _NOTHING
        if space.changes_ms <= now_ms:
            space.settle(now_ms)
            if space.shift is None and not space.requests and now_ms - space.shifted[0] > self._longest_ms:
                del self._spaces[space_id]
        return space.focus

    @property
    def _longest_ms(self) -> int:
        return int(self.table.longest_s * 1000)

    def hear(self, event: Event[Any], now_ms: int) -> None:
        """Take one event into account. One that cannot be understood is logged and changes nothing."""
        is_shift = event.meta.type == EventType.FOCUS_SHIFT_REQUEST
        if event.meta.type not in HEARD:
            return
        try:
            asked = (FocusShiftRequest if is_shift else AttentionRequest).model_validate(event.payload)
            focus = self._focus(event, asked, now_ms)
        except (ValidationError, InvalidMessage) as error:
            where = {"space": event.meta.space_id, "event_id": event.meta.event_id, "type": str(event.meta.type)}
            logger.warning("a request for attention was not understood: %s", _first_problem(error), extra=where)
            return
        space = self._spaces.setdefault(event.meta.space_id, _Space())
        if is_shift:
            moment = (int(event.meta.ts.timestamp() * 1000), event.meta.event_id)
            if moment > space.shifted:
                space.shift, space.shifted = focus, moment
        elif focus is not None:
            space.requests.pop(focus.id, None)
            space.requests[focus.id] = focus
            while len(space.requests) > self.table.at_once:
                space.requests.pop(min(space.requests, key=lambda key: (space.requests[key].until_ms, key)))
        space.settle(now_ms)

    def _focus(self, event: Event[Any], asked: AttentionRequest, now_ms: int) -> Focus | None:
        wanted = _wanted(asked)
        if not wanted:
            return None
        lasts_s = self.table.lasts_s if asked.duration_s is None else asked.duration_s
        # From when it was said, but no clock can make it last longer than it was meant to.
        said_ms = min(int(event.meta.ts.timestamp() * 1000), now_ms)
        until_ms = said_ms + int(min(lasts_s, self.table.longest_s) * 1000)
        made = filter_from(wanted[0] if len(wanted) == 1 else {"all": wanted}, where="payload.filter")
        return Focus(event.meta.event_id, made, 1.0 if asked.weight is None else asked.weight, until_ms)


def _wanted(asked: AttentionRequest) -> list[Any]:
    """What a request names, as filters in plain data; all of it must hold."""
    wanted: list[Any] = []
    if asked.filter:
        wanted.append(asked.filter)
    if asked.key is not None:
        wanted.append({"path": "meta.key", "value": asked.key})
    if asked.tags:
        wanted.append({"any": [{"path": "payload.tags", "op": "contains", "value": tag} for tag in asked.tags]})
    return wanted


def _first_problem(error: ValidationError | InvalidMessage) -> str:
    if isinstance(error, InvalidMessage):
        return f"{error.field}: {error.allowed}"
    first: Mapping[str, Any] = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"payload.{'.'.join(map(str, first['loc']))}: {first['msg']}"
