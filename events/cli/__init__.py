"""The `events` command: looking into a workspace, publishing, dead letters, keeping the files in order.

Layout: `app` has the commands in their order and turns errors into exit codes; `session` is what every command starts
from (settings, console, reader, policy); `output` prints tables, JSON and progress; `selection` reads patterns, filters
and moments. The other files are one family of commands each. Only commands that change something take the lock.
"""

from events.cli.app import app, main

__all__ = ["app", "main"]
