"""Core of a measurement: protocols, cells, records, intervals, provenance."""
