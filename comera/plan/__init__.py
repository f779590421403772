"""Plans: which layers are tensorized, and how."""
