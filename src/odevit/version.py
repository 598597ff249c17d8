"""The version of the library; saved with every model."""

__version__ = "0.1.0"
