"""One finished-request record in, metrics and one log line out."""
