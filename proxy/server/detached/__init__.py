"""Runs that go on without their client: what they say is kept, and whoever asks for it again gets it."""
