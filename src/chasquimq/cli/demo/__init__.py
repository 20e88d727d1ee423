"""Demonstrates the queue: thousands of jobs on a private server, and what became of them."""
