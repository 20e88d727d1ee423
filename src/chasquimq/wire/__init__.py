"""Names and bytes: pure functions that spell what Redis stores, without a client or a loop."""
