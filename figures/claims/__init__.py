"""Published claims, the rules that judge them, and their verdicts."""
