"""`python -m events.demo`, and the child process that the tour kills."""

import sys

from events.demo import run
from events.demo.agent import CHILD, child_main

if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child_main(sys.argv[2])
    else:
        sys.exit(0 if run() else 1)
