"""PriFedSync: federated learning with record-level privacy, stated and proved as f-differential privacy."""

__version__ = "0.1.0"
