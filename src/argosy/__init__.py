"""Argosy."""
