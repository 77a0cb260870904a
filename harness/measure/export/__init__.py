"""What Prometheus is told: metrics of a run as it goes on or from stored records, and the page of a night."""
