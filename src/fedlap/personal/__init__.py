"""Clients' models in use: on raw values, kept in files, and for clients that join later."""

from fedlap.personal.join import joined
from fedlap.personal.metadata import About
from fedlap.personal.models import Personal, Personals

__all__ = ["About", "Personal", "Personals", "joined"]
