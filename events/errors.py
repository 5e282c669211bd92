"""Every error that the bus raises, each with a stable code.

    BusError
    ├── InvalidMessage          INVALID_MESSAGE      an event, a payload or a setting is malformed
    │   ├── InvalidTopic        INVALID_TOPIC
    │   ├── InvalidGroup        INVALID_GROUP
    │   ├── InvalidSpace        INVALID_SPACE
    │   └── PayloadTooLarge     PAYLOAD_TOO_LARGE
    ├── BusClosed               BUS_CLOSED           publish or subscribe after close
    ├── NoSubscriber            NO_SUBSCRIBER        strict topology: nobody would get the event
    ├── QueueFull               QUEUE_FULL           a group at the head had no room in time; not written
    ├── TopicAlreadyHandled     TOPIC_ALREADY_HANDLED  strict topology: one handler per topic
    ├── TopicFrozen             TOPIC_FROZEN         strict topology: subscribe after the first publish
    ├── GroupConflict           GROUP_CONFLICT       the group exists with other patterns or filters
    ├── UnknownGroup            UNKNOWN_GROUP        no such group, or no such dead letter
    ├── Denied                  DENIED               policy said no
    └── StorageError            STORAGE              the disk, or what is on it
        ├── OutcomeUnknown      OUTCOME_UNKNOWN      the event may or may not be durable
        │   └── LogPoisoned     POISONED             an fsync failed; the log takes no more
        ├── StorageFull         STORAGE_FULL         no room; not written
        ├── CorruptLog          CORRUPT              damage that recovery must not hide
        ├── WorkspaceLocked     LOCKED               another process has the workspace
        ├── ForkedProcess       FORKED               the child of a fork used its parent's bus
        ├── ReadOnly            READ_ONLY            opened for reading only
        ├── OffsetGone          OFFSET_GONE          retention or compaction took the offset
        └── UnsupportedPlatform UNSUPPORTED_PLATFORM the promises cannot be kept here

Messages are built from typed fields, so that code can act on the fields and people on the text.
"""

from __future__ import annotations

from typing import Any, ClassVar

_SHOWN_CHARACTERS = 80
_SHOWN_PARTS = 10_000


def shown(value: object) -> str:
    """A value as an error message shows it: quoted, and cut where it is long."""
    try:
        _count_parts(value)
        text = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    except Exception:  # an integer of thousands of digits, a structure as large or deep, or a __repr__ that raises
        text = f"a {type(value).__name__} that cannot be shown"
    if len(text) <= _SHOWN_CHARACTERS + 2:
        return text
    return text[:_SHOWN_CHARACTERS] + "…" + (text[0] if text[0] in "'\"" else "")


def _count_parts(value: object) -> None:
    """Raise for a structure of too many parts: one that shares them may have more than there is memory for."""
    pending, left = [value], _SHOWN_PARTS
    while pending:
        part = pending.pop()
        left -= 1
        if left < 0:
            raise ValueError("too much to show")
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            pending.extend(part)


class BusError(Exception):
    """The root of the tree. `code` is stable; the message may be reworded."""

    code: ClassVar[str] = "BUS_ERROR"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the message alone, so an error could not leave a worker process.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[BusError], args: tuple[Any, ...], fields: dict[str, Any]) -> BusError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidMessage(BusError, ValueError):
    """An event, a payload or a setting is malformed. Nothing was written."""

    code = "INVALID_MESSAGE"

    def __init__(self, field: str, found: object, allowed: str, *, hint: str = "") -> None:
        self.field, self.found, self.allowed, self.hint = field, found, allowed, hint
        super().__init__(f"{field}: found {shown(found)}; {allowed}{f'. {hint}' if hint else ''}")


class InvalidTopic(InvalidMessage):
    """A topic outside the grammar of rule F3."""

    code = "INVALID_TOPIC"


class InvalidGroup(InvalidMessage):
    """A group name outside the grammar of rule F3."""

    code = "INVALID_GROUP"


class InvalidSpace(InvalidMessage):
    """A space id that is empty, unprintable or too long."""

    code = "INVALID_SPACE"


class PayloadTooLarge(InvalidMessage):
    """The encoded event is larger than the configured limit."""

    code = "PAYLOAD_TOO_LARGE"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
        super().__init__(
            "payload",
            f"{size_bytes} bytes",
            f"an event may have at most {limit_bytes} bytes",
            hint="Store the bulk elsewhere and publish a reference, or raise max_event_bytes",
        )


class BusClosed(BusError):
    """The bus was closed, or is closing: it takes nothing new."""

    code = "BUS_CLOSED"

    def __init__(self, attempted: str = "publish") -> None:
        super().__init__(f"{attempted} refused: this bus is closed. Open a new EventBus on the workspace")


class NoSubscriber(BusError):
    """Strict topology only: no group would receive the event."""

    code = "NO_SUBSCRIBER"

    def __init__(self, topic: str, space_id: str) -> None:
        self.topic, self.space_id = topic, space_id
        super().__init__(
            f"no group is subscribed to topic {topic!r} in space {space_id!r}, and the bus is strict: "
            "subscribe first, or turn strict topology off"
        )


class QueueFull(BusError):
    """A blocking group at the head of the log had no room within the timeout. Nothing was written."""

    code = "QUEUE_FULL"

    def __init__(self, topic: str, group: str, waited_s: float) -> None:
        self.topic, self.group, self.waited_s = topic, group, waited_s
        super().__init__(
            f"group {group!r} on topic {topic!r} had no room for {waited_s:.3g} s; nothing was written. "
            "Speed up or add workers, raise max_inflight, or subscribe with overflow='spill'"
        )


class TopicAlreadyHandled(BusError):
    """Strict topology only: the topic has its one handler."""

    code = "TOPIC_ALREADY_HANDLED"

    def __init__(self, topic: str, group: str) -> None:
        self.topic, self.group = topic, group
        super().__init__(
            f"topic {topic!r} is already handled by group {group!r}; strict topology has one handler per "
            "topic. Unsubscribe that group first, or turn strict topology off"
        )


class TopicFrozen(BusError):
    """Strict topology only: subscriptions are fixed once the first event was published."""

    code = "TOPIC_FROZEN"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"cannot change who handles {topic!r}: strict topology is frozen at the first publish. "
            "Subscribe everything before publishing"
        )


class GroupConflict(BusError):
    """The group exists durably with other settings (rule W3)."""

    code = "GROUP_CONFLICT"

    def __init__(self, group: str, setting: str, existing: object, wanted: object) -> None:
        self.group, self.setting, self.existing, self.wanted = group, setting, existing, wanted
        super().__init__(
            f"group {group!r} exists with {setting} {shown(existing)}, not {shown(wanted)}. "
            "Use another group name, or delete_group() this one to forget its position"
        )


class UnknownGroup(BusError):
    """No such group, or no such dead letter of it."""

    code = "UNKNOWN_GROUP"

    def __init__(self, what: str) -> None:
        super().__init__(what)


class Denied(BusError):
    """Policy refused the action."""

    code = "DENIED"

    def __init__(self, subject: str, action: str, topic: str, space_id: str, reason: str = "") -> None:
        self.subject, self.action = subject, action
        self.topic, self.space_id, self.reason = topic, space_id, reason
        super().__init__(
            f"{subject or 'anonymous'} may not {action} {topic!r} in space {space_id!r}"
            f"{f': {reason}' if reason else ''}. `events policy explain` shows the line that decided"
        )


class StorageError(BusError):
    """The disk refused, or what is on it is not what was written."""

    code = "STORAGE"


class OutcomeUnknown(StorageError):
    """The event was handed to the disk and no answer came: it may or may not be there (rule W2)."""

    code = "OUTCOME_UNKNOWN"

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"whether the publish to {topic!r} is durable is unknown: {reason}. "
            "Publish again with the same idem_key to be sure; it may then be delivered twice"
        )


class LogPoisoned(OutcomeUnknown):
    """An fsync or close failed, so what the page cache shows can no longer be trusted."""

    code = "POISONED"

    def __init__(self, topic: str, path: str, reason: str) -> None:
        self.path = path
        super().__init__(topic, f"{path}: {reason}; the log takes no more until the workspace is reopened")


class StorageFull(StorageError):
    """No room on the device for the whole of the timeout. Nothing was written."""

    code = "STORAGE_FULL"

    def __init__(self, topic: str, waited_s: float) -> None:
        self.topic, self.waited_s = topic, waited_s
        super().__init__(
            f"no space left on the device for {waited_s:.3g} s; the publish to {topic!r} was withdrawn. "
            "Free some space (`events compact`, `events retention`) and publish again"
        )


class CorruptLog(StorageError):
    """Damage that cannot be a torn write. Never truncated; the log is read-only until repaired."""

    code = "CORRUPT"

    def __init__(self, path: str, byte: int, first_missing: int, last_named: int, reason: str) -> None:
        self.path, self.byte = path, byte
        self.first_missing, self.last_named, self.reason = first_missing, last_named, reason
        through = f"..{last_named}" if last_named > first_missing else ""
        super().__init__(
            f"{path} is damaged at byte {byte} (offset {first_missing}{through}): {reason}. "
            "Restore a backup, or give the offsets up with `events repair --accept-loss`"
        )


class WorkspaceLocked(StorageError):
    """Another process has the workspace open for writing."""

    code = "LOCKED"

    def __init__(self, workspace: str, pid: int | None) -> None:
        self.workspace, self.pid = workspace, pid
        super().__init__(
            f"workspace {workspace} is held by {f'process {pid}' if pid else 'another process'}. "
            "Publish through that process, stop it, or use another workspace; reading needs no lock"
        )


class ForkedProcess(StorageError):
    """The child of a fork tried to use the bus of its parent."""

    code = "FORKED"

    def __init__(self, workspace: str) -> None:
        super().__init__(
            f"workspace {workspace} was opened before this process was forked, and belongs to the parent. "
            "Open the bus after forking, or start the process with multiprocessing's 'spawn'"
        )


class ReadOnly(StorageError):
    """The workspace was opened for reading only."""

    code = "READ_ONLY"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be changed: {reason}. Open the workspace for writing to change it")


class OffsetGone(StorageError):
    """Retention or compaction deleted the segment that held the offset."""

    code = "OFFSET_GONE"

    def __init__(self, log: str, offset: int, first_retained: int) -> None:
        self.log, self.offset, self.first_retained = log, offset, first_retained
        super().__init__(
            f"{log}: offset {offset} was deleted; the first that is still there is {first_retained}. "
            "Start from there, or keep more with retention"
        )


class UnsupportedPlatform(StorageError):
    """The promises cannot be kept here, so the workspace is not opened."""

    code = "UNSUPPORTED_PLATFORM"

    def __init__(self, platform: str, lacks: str) -> None:
        super().__init__(f"{platform} cannot keep the bus's promises: it lacks {lacks}. Use Linux or macOS")


def error_code_of(error: BaseException | None) -> str | None:
    """The stable code of the first `BusError` in the chain of causes, or None when there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, BusError):
            return error.code
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None
