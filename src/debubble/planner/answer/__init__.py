"""The answer to a planning question, as text and as plain data."""
