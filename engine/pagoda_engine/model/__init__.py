"""The tensor half of the engine: checkpoints, the decoder, paged attention and sampling.

Only `interface` may be imported by the tensor-free half; everything else here may import torch, and nothing is
re-exported, so that importing this package costs nothing.
"""
