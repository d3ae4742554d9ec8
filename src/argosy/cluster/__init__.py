"""Who is in the job, and which of them am I."""
