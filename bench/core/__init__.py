"""What a measurement is: protocols, cells, records, intervals, provenance."""
