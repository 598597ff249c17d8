"""A pretrained ViT whose blocks become an equation: the student."""
