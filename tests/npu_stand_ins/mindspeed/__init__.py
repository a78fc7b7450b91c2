"""Stands in for MindSpeed."""
