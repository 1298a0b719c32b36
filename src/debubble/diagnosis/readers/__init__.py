"""Readers of trace files, one module for each format."""
