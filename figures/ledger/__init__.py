"""The claims ledger: every published claim with what records say about it, and its pages."""
