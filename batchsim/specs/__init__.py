"""What is given: recipe, hardware, model, engine and lengths, as frozen dataclasses with bounds."""
