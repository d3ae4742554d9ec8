"""Fixtures of all tests. Not seen by mypy, which cannot have two modules of this name: leaks.py is."""

from leaks import nothing_is_left, own_temporary_directory  # noqa: F401
