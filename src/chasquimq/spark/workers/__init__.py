"""Handlers at cluster scale: one long job of Spark whose tasks each host an ordinary worker."""
