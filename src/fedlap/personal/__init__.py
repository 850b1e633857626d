"""Personal models in use: prediction on raw values, model files, and clients that join later."""

from fedlap.personal.coefficients import Coefficients, compute_coefficients
from fedlap.personal.join_settings import JoinSettings
from fedlap.personal.metadata import ModelMetadata
from fedlap.personal.models import Personal, Personals
from fedlap.personal.predictions import Predictions

__all__ = [
    "Coefficients",
    "JoinSettings",
    "ModelMetadata",
    "Personal",
    "Personals",
    "Predictions",
    "compute_coefficients",
]
