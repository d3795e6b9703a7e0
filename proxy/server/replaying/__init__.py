"""Replay a recorded run with the recorded messages of the model and the recorded results of its tools."""
