"""Prefect blocks: what a person fills in once. Registered with ``prefect block register -m blocks``."""

from blocks.cluster import ClusterBlock
from blocks.image import ImageBlock
from blocks.model import ModelBlock
from blocks.simulator import SimulatorBlock

__all__ = ["ClusterBlock", "ImageBlock", "ModelBlock", "SimulatorBlock"]
