"""The paper's evaluation, and what it shows."""
