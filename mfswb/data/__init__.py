"""Readers, and built-in samples."""
