"""Personal models in use: prediction on raw values, model files, and clients that join later."""

from fedlap.personal.join import join_client
from fedlap.personal.metadata import ModelMetadata
from fedlap.personal.models import Personal, Personals
from fedlap.personal.predictions import Predictions

__all__ = ["ModelMetadata", "Personal", "Personals", "Predictions", "join_client"]
