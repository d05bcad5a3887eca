"""Fakes that we own: a recorder, and a backend that follows a script."""
