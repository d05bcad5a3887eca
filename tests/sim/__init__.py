"""Tests of the simulated engine."""
