"""`chasqui dlq`: dead jobs, listed, replayed, edited, exported and deleted."""
