"""How values travel: tensors as bytes, and the sockets and shared memory between processes of one machine."""
