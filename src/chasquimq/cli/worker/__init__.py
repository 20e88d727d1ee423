"""`chasqui worker`: runs handlers, in one process or in many."""
