"""Remote devices: one client, the tasks of a cluster as its devices."""
