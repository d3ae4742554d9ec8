"""The process of a server: a parameter server's shard, its coordinator, and the task that serves devices."""
