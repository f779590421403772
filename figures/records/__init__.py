"""What figures ask of records: times, scores, sizes, searches, plans."""
