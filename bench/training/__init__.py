"""A training run: the stages of its plan, the run itself, and what the model that it ends with needs."""
