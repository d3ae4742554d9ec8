"""The frame of a training, from the first parameters to the last."""
