"""Run the command line: ``python -m proxy`` is the same as ``toolrelay``."""

import sys

# Older versions would fail with an error of syntax somewhere in the middle of the imports.
if sys.version_info < (3, 11):  # noqa: UP036  pip checks this, a copy of the source does not.
    sys.exit("toolrelay needs Python 3.11 or newer, and this is " + sys.version.split()[0])

from proxy.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
