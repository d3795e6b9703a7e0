"""Logs of the events of runs: in this process, and shared by all processes through Redis."""
