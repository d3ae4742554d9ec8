"""Memory that processes of one host share: made here, passed on here, and its order kept here.

`region` makes and maps it, `passing` gives it to other processes, `counters` and `bells` tell them how far we
have come. Three transports stand on this: the servers' channel (`wire`), remote devices, and the ring.
"""
