"""Argosy and its peers, measured by one harness: `python -m benchmarks --help`.

`__main__` reads the command line; `parts` are what can be measured; `running` starts and ends processes;
`figures` turns timestamps into rates and ratios; `report` and `plots` write them down. What is measured runs
in processes of its own: `contenders/` train, `micro/` look at one thing alone.
"""
