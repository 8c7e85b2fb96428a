"""Who may touch which slot, and which block goes when room is needed: pure bookkeeping, no I/O and no clock."""
