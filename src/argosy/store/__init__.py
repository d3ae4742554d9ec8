"""Parameters on servers: where they lie, how they are updated, how replicas reach them."""
