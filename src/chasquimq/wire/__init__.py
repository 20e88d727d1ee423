"""Names and bytes: pure functions that encode what Redis stores and decode it, without a client or an event loop."""
