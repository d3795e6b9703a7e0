"""The tools of Responses that have a type of their own and that the client runs."""
