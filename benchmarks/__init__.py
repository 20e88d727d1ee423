"""Measures this queue beside its peers and beside what the server itself could do."""
