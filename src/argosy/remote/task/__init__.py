"""A task's side: one session for each client, its scheduler, and the executor of captured steps."""
