"""`python -m events` is the `events` command."""

from events.cli import main

if __name__ == "__main__":
    main()
