"""How tasks talk: messages of a small header and raw tensor frames, over interchangeable channels."""
