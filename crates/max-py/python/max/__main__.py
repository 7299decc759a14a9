"""The `max` command: `max ...` or `python -m max ...`."""

from __future__ import annotations

import signal
import sys

from max import _core


def main() -> int:
    """Runs the command with the arguments of this process, and returns its exit status."""
    # Python would only remember Ctrl-C until the command is over. Where it is ignored, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.command(["max", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
