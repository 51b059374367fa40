"""The paper's evaluation: its tables and its figures."""
