"""Runs that continue without their client, which can get their output later."""
