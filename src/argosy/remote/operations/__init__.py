"""What a client may have a task run: instructions, allowed operations, and how each is checked and called."""
