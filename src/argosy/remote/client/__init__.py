"""A client's side: tensors that live on tasks, operations on them, and captured steps."""
