"""Replay of a recorded run, with the recorded words of the model and results of the tools."""
