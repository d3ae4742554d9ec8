"""Checkpoints on disk: safetensors files and one JSON index, whole or not at all."""
