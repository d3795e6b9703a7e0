"""The tools of Messages that have a type of their own and that the client runs."""
