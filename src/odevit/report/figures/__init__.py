"""numbers -> Figure, one function a picture."""
