"""The replay of a recorded run, with the recorded messages of the model and results of its tools."""
