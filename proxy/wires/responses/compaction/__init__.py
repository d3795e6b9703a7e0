"""Compactions (``/responses/compact``)."""
