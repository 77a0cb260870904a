"""Rules per operation type for variables that are cut into parts."""
