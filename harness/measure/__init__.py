"""Measurement of a case: warm-up, windows, bytes, traces and links; metrics for Prometheus.

Counters and timestamps of workers come in, figures of a repeat go out.
"""
