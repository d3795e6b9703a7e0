"""``python -m proxy`` is ``toolrelay``."""

from proxy.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
