"""When is a gradient applied, and who is in the job: state machines without input or output.

An event comes in, decisions come out; the server carries them out in order. No sockets, threads, clock,
torch or randomness in this package, so every policy is tested without a process.
"""
