"""Which offsets of a log other durable files name: the witnesses of recovery's third rule."""

from __future__ import annotations

import os
from typing import NamedTuple

from events.persistence.checkpoints import checkpoint_from, group_from
from events.persistence.documents import list_documents, read_document, read_previous
from events.persistence.files import FileSystem
from events.persistence.mark import Mark, read_mark
from events.persistence.segment import Naming
from events.persistence.store import GroupRecord, LogName
from events.persistence.workspace import Layout, dlq_naming, list_groups, wal_naming


class Named(NamedTuple):
    """The highest offset that is named, and the id of the log by those who name it."""

    highest: int
    log_id: str | None


def named_offsets(fs: FileSystem, layout: Layout, name: LogName, groups: dict[str, GroupRecord] | None = None) -> Named:
    """Ask checkpoints, their previous copies, group records and dead letters."""
    highest, log_id = 0, None
    mark = _mark_of(fs, layout.folder(name.space_id, "wal"), wal_naming(name.topic))
    folder = layout.folder(name.space_id, "offsets")
    for file_name in list_documents(fs, folder):
        # From the right: a topic may end in an underscore, a group never begins with one.
        if file_name.rpartition("__")[0] != name.topic:
            continue
        path = os.path.join(folder, file_name)
        for document in (read_document(fs, path)[0], read_previous(fs, path)):
            if document is None:
                continue
            checkpoint = checkpoint_from(document.data)
            if mark is not None and checkpoint.log_id != mark.log_id:
                continue  # it means another log that once had this name
            log_id = checkpoint.log_id
            highest = max(highest, checkpoint.highest)
    for record in (groups if groups is not None else read_groups(fs, layout)).values():
        end = record.ends.get(name.space_id, {}).get(name.topic, 1)
        highest = max(highest, end - 1)
    dlq = _mark_of(fs, layout.folder(name.space_id, "dlq"), dlq_naming(name.topic))
    return Named(max(highest, dlq.names if dlq is not None else 0), log_id)


def read_groups(fs: FileSystem, layout: Layout) -> dict[str, GroupRecord]:
    """The group records that can be read, for those who only look."""
    groups: dict[str, GroupRecord] = {}
    for path in list_groups(fs, layout):
        document, _ = read_document(fs, path)
        if document is not None:
            record = group_from(document.data)
            groups[record.name] = record
    return groups


def _mark_of(fs: FileSystem, directory: str, naming: Naming) -> Mark | None:
    return read_mark(fs, os.path.join(directory, naming.mark()))[0]
