"""Parameter servers: synchronous, stale or asynchronous, with backup workers or proxies."""
