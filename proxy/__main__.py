"""Run the command line: ``python -m proxy`` is the same as ``toolrelay``."""

from proxy.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
