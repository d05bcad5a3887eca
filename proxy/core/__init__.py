"""Values, outcomes, errors and ports that every other part agrees on. Imports nothing of ours."""
