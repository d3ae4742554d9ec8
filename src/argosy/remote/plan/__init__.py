"""The compiler of captured steps: dependencies, segments, priorities. Pure."""
