"""What a client says and must hear, as pure functions over bytes and values."""
