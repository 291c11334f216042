"""The rules: plain functions `(txn, caller, now, …) -> result`, the same for every door."""
