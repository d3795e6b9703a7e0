"""WebSockets to clients: the connection, the mode of ``/v1/responses``, and answers as messages."""
