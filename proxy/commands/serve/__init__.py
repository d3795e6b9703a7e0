"""``serve``: a supervisor, its workers, their sockets and signals."""
