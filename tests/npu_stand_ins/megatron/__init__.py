"""Stands in for Megatron."""
