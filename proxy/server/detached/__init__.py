"""Runs that go on without their client, which can get their output later."""
