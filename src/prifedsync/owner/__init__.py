"""The owner of records: a policy, a ledger, and a daemon that answers one question. No network is known here.

`policy.py` and `ledger/` need no torch.
"""
