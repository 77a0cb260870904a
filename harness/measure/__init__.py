"""Measurement of a case: warm-up, windows, bytes, traces and links; metrics for Prometheus.

Input: counters and timestamps of workers. Output: figures of a repeat.
"""
