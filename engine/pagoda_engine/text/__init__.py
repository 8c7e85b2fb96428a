"""Text to token ids and back, and conversations to text, all from the model's own metadata. No torch."""
