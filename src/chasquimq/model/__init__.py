"""Values and decisions: pure functions, without a client, an event loop or a clock of their own."""
