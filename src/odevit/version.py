"""The version of the library; saved with every model."""

__version__ = "0.2.0"
