"""Online training of a language model from live conversations.

The package imports no Prefect: it is the system itself, and the flows in ``flows/`` only drive it.
"""

__version__ = "0.1.0"
