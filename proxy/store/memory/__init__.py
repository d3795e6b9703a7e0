"""The record in memory."""
