"""Figures, tables and verdicts: pure functions of the records and of ``published/claims.csv``."""
