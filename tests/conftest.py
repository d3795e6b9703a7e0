"""Puts this folder on the import path, so that every test finds the shared helpers beside this file."""
