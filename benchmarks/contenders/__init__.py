"""One script a contender: each trains the same network until its time is up, and writes when it stepped."""
