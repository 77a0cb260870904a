"""Synchronisation through servers: synchronous, stale, asynchronous, with backup workers or proxies."""
