"""Values and decisions: no waiting, no bytes, no clock but the one passed in."""
