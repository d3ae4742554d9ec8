"""Scripts that look at one thing alone: an exchange without a network, a cluster of one."""
