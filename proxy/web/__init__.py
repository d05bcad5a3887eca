"""What people see in a browser: pure functions from values to HTML. No scripts, nothing loaded from elsewhere."""
