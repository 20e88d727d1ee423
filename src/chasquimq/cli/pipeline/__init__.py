"""`chasqui pipeline`: the history of queues in tables, and answers from them."""
