"""Personal models in use: prediction on raw values, model files, and clients that join later."""

from fedlap.personal.coefficients import Coefficients, compute_coefficients
from fedlap.personal.join import join_client
from fedlap.personal.metadata import ModelMetadata
from fedlap.personal.models import Personal, Personals
from fedlap.personal.predictions import Predictions

__all__ = [
    "Coefficients",
    "ModelMetadata",
    "Personal",
    "Personals",
    "Predictions",
    "compute_coefficients",
    "join_client",
]
