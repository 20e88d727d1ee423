"""`chasqui demo`: a private server, thousands of jobs, and what became of them."""
