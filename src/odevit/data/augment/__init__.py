"""Pure functions on whole batches: float images [B, C, H, W] in 0..1 and the random numbers to use.

Written here, not taken from a library: nothing draws a number, waits for the device or branches on a value. All of it
compiles, can be captured in a CUDA graph, and treats a sample alike in every batch.
"""
