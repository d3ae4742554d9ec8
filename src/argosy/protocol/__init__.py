"""What tasks say to each other, as plain data: one module a conversation. Imports only leaves."""
