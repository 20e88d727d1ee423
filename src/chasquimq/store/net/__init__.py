"""Connections: addresses, dialling, reconnecting, clusters, scripts, errors."""
