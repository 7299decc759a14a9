"""The weights of models, and the files that they come in."""

from max.graph.weights.files import GGUFWeights, PytorchWeights, SafetensorWeights
from max.graph.weights.format import WeightsFormat, weights_format
from max.graph.weights.load import load_weights
from max.graph.weights.weight_data import WeightData
from max.graph.weights.weights import Weights

__all__ = [
    "GGUFWeights",
    "PytorchWeights",
    "SafetensorWeights",
    "WeightData",
    "Weights",
    "WeightsFormat",
    "load_weights",
    "weights_format",
]
