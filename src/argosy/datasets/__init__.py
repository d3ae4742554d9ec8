"""Data to train on: readers of public formats, and the digits that ship with the package.

Nothing is imported here: `argosy.datasets.idx` works without torch, `argosy.datasets.mnist` makes tensors.
"""
