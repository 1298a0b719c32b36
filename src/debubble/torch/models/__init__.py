"""Models in stages: small ones, those of Hugging Face, wrappers, and what is saved of them."""
