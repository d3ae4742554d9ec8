"""to be written"""


def capture(f):
    """x"""
    return f
