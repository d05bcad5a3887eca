"""Pure decisions: values in, a choice out. No clock, no socket, no log."""
