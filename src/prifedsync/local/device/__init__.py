"""Local training on a GPU: random numbers made there, clients in seats that stay in place, steps that are replayed."""
