"""Starts every task of a job on this machine, watches them, and leaves nothing behind."""
