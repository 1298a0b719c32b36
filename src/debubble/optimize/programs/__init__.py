"""Programs of all ranks: first ones to search from, and conversions between their forms."""
