"""The data of weights, as checkpoints have it."""

from max.graph.weights.weight_data import WeightData

__all__ = ["WeightData"]
