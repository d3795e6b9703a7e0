"""Tools of special types that the client runs itself, offered to models as ordinary functions."""
