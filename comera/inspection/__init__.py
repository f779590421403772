"""What a model is made of, and what a step of it takes."""
