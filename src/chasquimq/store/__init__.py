"""Every conversation with the server, one class per role."""
