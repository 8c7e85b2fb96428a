"""Codecs: how a block's KV is written below the device. `interface.py` holds the contract."""
